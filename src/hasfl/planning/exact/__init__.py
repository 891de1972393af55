"""The exact planner: the plan with the least Θ, and a lower bound that proves it (docs/decisions/0006)."""
