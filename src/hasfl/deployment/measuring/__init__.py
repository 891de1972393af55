"""How fast a machine and its links are, and how to rehearse slower ones."""
