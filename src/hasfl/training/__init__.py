"""Algorithm 1: the loop, the parties that take part in it, the clock, checkpoints."""
