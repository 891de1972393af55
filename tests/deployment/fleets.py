"""A whole fleet in one process with real sockets and TLS, but without Flower."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from hasfl.data.dataset import Dataset
from hasfl.deployment import agreement, device, edge_server, resources
from hasfl.deployment.answering import Offer
from hasfl.deployment.device import DeviceInSession, DeviceSetup
from hasfl.deployment.edge_server import EdgeInSession, EdgeSetup
from hasfl.deployment.joining import DeviceWorker, EdgeWorker
from hasfl.deployment.orders import RunOrder
from hasfl.deployment.pacing import Link, SlowTo
from hasfl.deployment.samples import Samples
from hasfl.deployment.training import train_on_fleet
from hasfl.models import costs
from hasfl.record import EDGE
from hasfl.runs.request import RunRequest
from hasfl.runs.scenario import read_scenario
from tests.deployment.loopback import LONG, Site, folder_of, token

SCENARIO = '[data]\nname = "digits"\n[training]\nlearning_rate = 0.1\n[stop]\nrounds = 3\n'


def ordered(
    path: Path, scenario: Path | None = None, *, strategy: str = "sfl", seed: int = 0, **more: Any
) -> RunOrder:
    """An order to train a scenario, or a small one, into a folder."""
    request = RunRequest(
        scenario_file=scenario or Path("a.toml"),
        text=SCENARIO if scenario is None else scenario.read_text(),
        path=path,
        strategy=strategy,
        seed=seed,
    )
    return RunOrder(request=request, **more)


@dataclass(frozen=True)
class Stock:
    """The samples of a fleet, as a simulation knows them."""

    data: Dataset
    shares: Sequence[torch.Tensor]

    def of_device(self, i: int) -> Samples:
        return Samples(
            self.data.x_train[self.shares[i]], self.data.y_train[self.shares[i]], self.data.outputs
        )

    @property
    def test(self) -> Samples:
        return Samples(self.data.x_test, self.data.y_test, self.data.outputs)


@dataclass(frozen=True)
class Box:
    """How slow a rehearsed device is, as people write it."""

    slow_to: str
    link: str


class OfferedSite:
    """A fed server whose fleet has joined its session."""

    def __init__(self, site: Site, devices: int) -> None:
        self.site, self.devices = site, devices

    def train(self, scenario: Path, path: Path, *, resume: bool = False) -> None:
        """Train as a scenario says."""
        asked = read_scenario(scenario)
        order = ordered(
            path,
            scenario,
            strategy=asked.training.strategy,
            seed=asked.seed,
            resume=resume,
            devices=self.devices,
            patience=LONG,
        )
        train_on_fleet(self.site.server, order)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Parties in threads count and measure one after the other: torch's counter is one for a process."""
    turn = threading.Lock()

    def taking_turns(function: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*arguments: Any, **more: Any) -> Any:
            with turn:
                return function(*arguments, **more)

        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "count_layers", taking_turns(costs.count_layers))
        for role in (device, edge_server):
            patch.setattr(role, "measure_flops", taking_turns(resources.measure_flops))
        yield


@contextmanager
def fleet_of(keys: Path, folder: Path, stock: Stock, boxes: Sequence[Box] = ()) -> Iterator[OfferedSite]:
    """Workers in threads of this process: an edge server and devices, which have connected.

    With boxes, devices rehearse these.
    """
    devices, site = len(stock.shares), Site(keys)
    with ExitStack() as parts:
        parts.enter_context(one_at_a_time())
        parts.callback(site.close)
        setup = EdgeSetup(folder / "edge", "", test=stock.test)
        edge = EdgeWorker(
            "127.0.0.1:0",
            keys / "edge",
            folder / "edge",
            lambda offer, links: EdgeInSession(setup, links),
            hello=setup.hello,
        )
        setup.address = f"127.0.0.1:{edge.devices.port}"
        parts.callback(edge.close)
        edge.sessions.take(Offer(site.address, token(EDGE), "run"))
        for i in range(devices):
            box = boxes[i] if boxes else None
            parts.callback(_device(keys, folder, stock, i, site, box).close)
        present = {EDGE, *range(devices)}
        assert site.server.wait_until_present(present, 3 * LONG) == present
        yield OfferedSite(site, devices)


def _device(keys: Path, folder: Path, stock: Stock, i: int, site: Site, box: Box | None) -> DeviceWorker:
    setup = DeviceSetup(i, stock.of_device(i), slow=SlowTo.parse(box.slow_to) if box else None)
    worker = DeviceWorker(
        i,
        folder_of(keys, i),
        folder / f"device-{i}",
        lambda offer: DeviceInSession(setup),
        hello=setup.hello,
        fed_pace=Link.parse(box.link) if box else None,
        edge_pace=Link.parse(box.link) if box else None,
    )
    worker.sessions.take(Offer(site.address, token(i), "run"))
    return worker
