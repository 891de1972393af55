"""The paper's planner, Algorithm 2: improve batch sizes and cuts in turn."""
