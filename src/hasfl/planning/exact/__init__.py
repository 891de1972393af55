"""The exact planner: the least Θ over batch sizes and cuts, with a certificate (docs/decisions/0006)."""
