"""Runs the command line for `python -m hasfl`."""

from hasfl.cli.main import main

main()
