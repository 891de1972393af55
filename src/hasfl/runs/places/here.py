"""Runs in this process, one after the other."""

from collections.abc import Sequence

from hasfl.runs.places.places import After, continued_by_the_same_command
from hasfl.runs.request import RunRequest
from hasfl.runs.run import Watcher, carry_out


class Here:
    """This process. The first error ends everything."""

    def carry_out(self, requests: Sequence[RunRequest], after: After, watcher: Watcher) -> None:
        """Carry out every request."""
        with continued_by_the_same_command():
            for request in requests:
                carry_out(request, watcher, resume=True)
                after(request)
