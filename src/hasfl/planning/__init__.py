"""Which batch size and cut for every device: the paper's solver, and one that proves its answer."""
