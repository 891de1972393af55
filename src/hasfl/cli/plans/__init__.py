"""The command `plan`, and how plans are told to people."""
