"""From what a user asks to the rooms that answer. With `cli`, the only place that may import every room."""
