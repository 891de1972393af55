"""Planners: the best batch size and cut of every device, by the paper's solver or with a proof."""
