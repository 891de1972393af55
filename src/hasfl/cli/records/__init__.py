"""The commands about what is kept: runs, their exports, and the installation that they need."""
