"""The papers of `sinkscope reproduce`, one file each: the plan of the work, and the published numbers."""
