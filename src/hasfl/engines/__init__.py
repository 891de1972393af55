"""Algorithm 1: one loop, and engines that do a round in different ways with the same result."""
