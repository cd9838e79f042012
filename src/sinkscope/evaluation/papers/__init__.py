"""The papers that `sinkscope reproduce` can reproduce, one file each: the plan of the work, and the published numbers."""
