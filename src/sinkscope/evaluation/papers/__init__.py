"""The papers whose tables and figures `sinkscope reproduce` makes: each a plan, as data, and its published numbers."""
