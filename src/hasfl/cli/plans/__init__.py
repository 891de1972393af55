"""The command `plan`, and how plans and what is to come are told to people."""
