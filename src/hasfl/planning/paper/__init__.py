"""The paper's planner, Algorithm 2: batch sizes and cuts in turn."""
