"""The fed server's app, which Flower starts for each run.

The app opens the port that parties connect to, offers them sessions through Flower, waits until the edge
server and enough devices are connected, trains, and ends the sessions.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hasfl.deployment.addresses import STATE_VARIABLE
from hasfl.deployment.asking import PartyServer, party_name
from hasfl.deployment.channels import FED_NAME
from hasfl.deployment.flower.bundle import ORDER_KEY
from hasfl.deployment.flower.roster import Roster
from hasfl.deployment.lifetime import end_with_flower
from hasfl.deployment.orders import FedHost, OrderFolder, RunOrder, log_of_run
from hasfl.errors import HasflError, InputError, Interrupted
from hasfl.record import EDGE

# The numbers below were chosen by hand.
LOOK_SECONDS = 0.1  # pause between two checks of which parties are connected
PORT_SECONDS = 30.0  # time limit for an earlier run to close the port

StopAsked = Callable[[], bool]  # whether the run was asked to stop at the end of an interval
log = logging.getLogger(__name__)

app = ServerApp()
end_with_flower()


class FleetMissing(HasflError):
    """The edge server or enough devices did not connect in time to begin the training."""

    exit_code = 1


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out one run, from its order to its end."""
    state = Path(os.environ[STATE_VARIABLE])
    with _logged(log_of_run(state, context.run_id)):
        host = FedHost.read(state)
        folder = OrderFolder.named(state, str(context.run_config[ORDER_KEY]))
        order = folder.order()
        with folder.working():
            _carry_out(grid, str(context.run_id), host, order, folder.stop_asked)


def _carry_out(grid: Grid, run: str, host: FedHost, order: RunOrder, stop_asked: StopAsked) -> None:
    with _open_port(host) as links:
        roster = Roster(grid, links, run=run, announce=host.told, tell=log.info)
        threading.Thread(target=roster.keep, name="roster", daemon=True).start()
        try:
            from hasfl.deployment.training import train_on_fleet  # late: torch loads while parties connect

            _wait_for_fleet(links, roster, order, stop_asked)
            train_on_fleet(links, order, stop_asked)
        finally:
            roster.end()


def _open_port(host: FedHost) -> PartyServer:
    """Open the port for sessions, and wait if a run that was just stopped still uses it."""
    deadline = time.monotonic() + PORT_SECONDS
    while True:
        try:
            return PartyServer(FED_NAME, host.listen, host.keys)
        except InputError as error:
            if time.monotonic() > deadline:
                raise InputError(f"{error}; if another run has it, wait for that run or stop it") from None
            time.sleep(LOOK_SECONDS)


def _wait_for_fleet(links: PartyServer, roster: Roster, order: RunOrder, stop_asked: StopAsked) -> None:
    """Wait until the edge server and enough devices are connected."""
    deadline, needed = time.monotonic() + order.patience, {EDGE, *range(order.devices)}
    while not needed <= (present := links.present()):
        if stop_asked():
            raise Interrupted("stopped between two intervals, as asked")
        if roster.failure is not None:
            raise FleetMissing(f"Flower ended the run before the fleet was connected: {roster.failure}")
        if time.monotonic() > deadline:
            raise FleetMissing(
                f"a run needs the edge server and {order.devices} devices within {order.patience:g} s, but "
                f"{', '.join(map(party_name, sorted(needed - present)))} did not come: start them with hasfl "
                "serve, and submit the run again"
            )
        time.sleep(LOOK_SECONDS)


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Log to a file what happens and why a run fails, because Flower does not show the output of an app."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    top = logging.getLogger("hasfl")
    top.addHandler(file)
    top.setLevel(logging.INFO)
    try:
        yield
    except SystemExit:
        log.info("the run was stopped")
        raise
    except BaseException as error:
        log.error("%s", error, exc_info=not isinstance(error, HasflError))
        raise
    finally:
        top.removeHandler(file)
        file.close()
