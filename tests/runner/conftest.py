"""The command line in this process."""

from tests.cli.conftest import hasfl as hasfl
