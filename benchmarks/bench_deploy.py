"""What does a deployment cost beside compute: bytes a second, milliseconds a round, messages an interval?

    python -m benchmarks.bench_deploy              # everything, some minutes
    python -m benchmarks.bench_deploy --quick      # fewer repeats, and no fleet of 50 devices

It writes benchmarks/deploy_<hardware>_<date>.md. Everything runs on loopback with TLS on; every party is a
process of its own, but for the fed server, which is in this process. Flower only offers sessions, so it is
left out (benchmarks/worker_fleet.py).
"""

import argparse
import asyncio
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import torch

from benchmarks.worker_fleet import HERE as LOOPBACK
from benchmarks.worker_fleet import WorkerFleet, write_scenario
from hasfl.deployment.channels import FED, handlers, method, open_channel, open_port, server_options
from hasfl.deployment.keys import DEVICES_FOLDER, make_keys
from hasfl.deployment.sessions.answering import ServerPlace, Stop, answer_questions
from hasfl.deployment.sessions.asking import PartyServer
from hasfl.parties.messages import Message
from hasfl.record import RoundRecord

HERE = Path(__file__).parent
MEGABYTES = (0.1, 1.0, 10.0)  # of activations
BLOCKS = 40  # of exchanges, ours and bare ones in turn; the median over blocks counts
BLOCK_BYTES = 5e6  # that a block sends each way at least …
FEWEST_EXCHANGES = 4  # … and its exchanges
KINDS = 8  # different messages in turn: no message of a training is in the processor's cache already
DEVICES = (4, 16, 50)
SAMPLES = 16  # of each device in a round, for rounds a second; overheads are measured with one sample
INTERVAL = 5
ROUNDS = 5 * INTERVAL
NAME, TOKEN = "box", "token"
PARTY_SECONDS = 60.0  # for a party to connect
SPEED_COLUMNS = (
    "activations", "hasfl", "bare gRPC", "bare, other thread", "ratio", "ratio, other thread",
    "hasfl, one exchange", "bare", "bare, other thread",
)  # fmt: skip
ROUND_COLUMNS = (
    "device processes", "round, b = 1", "overhead a round", "overhead a round and device", "round, b = 16",
    "rounds/s, b = 16", "start to connected",
)  # fmt: skip
MESSAGES = (
    "device processes", "begin, edge server", "begin, devices", "give, devices", "give, edge server",
    "finish", "all messages", "whole end of an interval",
)  # fmt: skip
STEPS = ("device_forward", "server_forward", "server_backward", "device_backward")  # of compute


# ── data plane: the same bytes through `PartyServer.ask` and through a bare stream of gRPC ───────────────


def party(kind: str, port: int, keys: Path) -> None:
    """The other end, in a process of its own: it sends back what it received."""
    folder, address = keys / DEVICES_FOLDER / NAME, f"{LOOPBACK}:{port}"
    if kind == "ours":
        hello = {"token": TOKEN, "party": 0}
        answer_questions(
            ServerPlace(FED, address, folder), hello, lambda q: Message("done", {}, q.tensors), Stop()
        )
        return
    import queue

    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with open_channel(FED, address, folder) as channel:
        outbox.put(b"hello")
        for data in channel.stream_stream(method(FED))(iter(outbox.get, None)):
            outbox.put(data)


@contextmanager
def other_end(kind: str, port: int, keys: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.bench_deploy", "--party", kind, str(port), str(keys)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class BareStream:
    """A server of grpc.aio with the same TLS and options, on which bytes go to and fro."""

    def __init__(self, keys: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.context: Any = None
        self.greeted, self.over = threading.Event(), asyncio.Event()
        self.port = 0
        listening = threading.Event()
        threading.Thread(target=self._run, args=(keys, listening), daemon=True).start()
        listening.wait()

    def _run(self, keys: Path, listening: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve(keys, listening))

    async def _serve(self, keys: Path, listening: threading.Event) -> None:
        server = grpc.aio.server(options=server_options())
        server.add_generic_rpc_handlers(handlers(FED, self._session))
        self.port = open_port(server, f"{LOOPBACK}:0", keys / FED)
        await server.start()
        listening.set()
        await self.over.wait()
        await server.stop(0)

    async def _session(self, _frames: object, context: Any) -> None:
        await context.read()
        self.context = context
        self.greeted.set()
        await self.over.wait()

    def exchange(self, messages: list[bytes]) -> None:
        """Send messages and wait for each to come back before the next one is sent."""

        async def to_and_fro() -> None:
            for data in messages:
                await self.context.write(data)
                assert len(await self.context.read()) == len(data)

        asyncio.run_coroutine_threadsafe(to_and_fro(), self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.over.set)


def throughput(folder: Path, blocks: int) -> list[str]:
    keys = folder / "keys"
    make_keys(keys, devices=[NAME], fed=[LOOPBACK], edge=[LOOPBACK])
    bare = BareStream(keys)
    with PartyServer(FED, f"{LOOPBACK}:0", keys / FED) as ours:
        ours.allow({0: TOKEN})
        with other_end("ours", ours.port, keys), other_end("bare", bare.port, keys):
            assert ours.wait_until_present([0], PARTY_SECONDS)
            assert bare.greeted.wait(PARTY_SECONDS)
            lines = [_row(SPEED_COLUMNS), _rule(SPEED_COLUMNS)]
            for megabytes in MEGABYTES:
                lines.append(_throughput_row(ours, bare, megabytes, blocks))
                print(lines[-1], flush=True)
    bare.close()
    return lines


def _throughput_row(ours: PartyServer, bare: BareStream, megabytes: float, blocks: int) -> str:
    size = int(megabytes * 1e6)
    labels = torch.zeros(16, dtype=torch.int64)
    questions = [
        Message("backward", {"interval": 0, "round": 1}, {"activations": tensor, "labels": labels})
        for tensor in torch.rand(KINDS, size // 4)
    ]
    data = [os.urandom(size) for _ in range(KINDS)]
    count = max(FEWEST_EXCHANGES, round(BLOCK_BYTES / size))

    def ask() -> None:
        for k in range(count):
            assert ours.ask({0: questions[k % KINDS]}, PARTY_SECONDS)

    def exchange_one_by_one() -> None:
        for k in range(count):
            bare.exchange([data[k % KINDS]])

    in_a_row = [data[k % KINDS] for k in range(count)]
    ways = {"ours": ask, "bare": lambda: bare.exchange(in_a_row), "hop": exchange_one_by_one}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for block in range(blocks + 1):
        for name, work in ways.items():
            taken = _timed(work) / count
            if block > 0:  # the first one warms up
                seconds[name].append(taken)
    usual = {name: statistics.median(of) for name, of in seconds.items()}
    speeds = [f"{2 * size / each / 1e6:,.0f} MB/s" for each in usual.values()]
    ratios = [f"{usual[name] / usual['ours']:.0%}" for name in ("bare", "hop")]
    times = [f"{1e3 * each:.2f} ms" for each in usual.values()]
    return _row([f"{megabytes:g} MB", *speeds, *ratios, *times])


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# ── rounds and intervals ─────────────────────────────────────────────────────────────────────────────────


def fleets(sizes: tuple[int, ...], rounds: int) -> tuple[list[str], list[str]]:
    """Two tables: overhead and rounds a second, and what the messages of an interval cost."""
    table, messages = [_row(ROUND_COLUMNS), _rule(ROUND_COLUMNS)], [_row(MESSAGES), _rule(MESSAGES)]
    for devices in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            scenario = write_scenario(folder, devices=devices, rounds=rounds, interval=INTERVAL)
            began = time.perf_counter()
            with WorkerFleet(folder, scenario).running() as fleet:
                connected = time.perf_counter() - began
                small = fleet.train("b=1+cut=2", "small")
                messages.append(_messages_row(fleet, small))
                usual = fleet.train(f"b={SAMPLES}+cut=2", "usual")
        table.append(_rounds_row(devices, small, usual, connected))
        print(table[-1], messages[-1], sep="\n", flush=True)
    return table, messages


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: Sequence[str]) -> str:
    return "|" + "--:|" * len(columns)


def _counted(records: list[RoundRecord]) -> list[RoundRecord]:
    """Without the first interval, in which everything is done for the first time."""
    return [record for record in records if record.round > INTERVAL]


def _rounds_row(devices: int, small: list[RoundRecord], usual: list[RoundRecord], connected: float) -> str:
    pairs = [
        (record.measured.spans["split_training"], _compute(record))
        for record in _counted(small)
        if record.measured
    ]
    whole = statistics.median(span for span, _ in pairs)
    overhead = statistics.median(span - compute for span, compute in pairs)
    later = [record.measured.spans["split_training"] for record in _counted(usual) if record.measured]
    middle = statistics.median(later)
    return (
        f"| {devices} | {1e3 * whole:.1f} ms | {1e3 * overhead:.1f} ms | {1e3 * overhead / devices:.2f} ms | "
        f"{1e3 * middle:.1f} ms | {1 / middle:.1f} | {connected:.0f} s |"
    )


def _compute(record: RoundRecord) -> float:
    """Seconds in which parties computed: those of the slowest device, and those of the edge server."""
    assert record.measured is not None
    return sum(max(record.measured.measured[step].values()) for step in STEPS)


def _messages_row(fleet: WorkerFleet, records: list[RoundRecord]) -> str:
    asked = [
        ("begin", "edge server"), ("begin", "devices"), ("give", "devices"), ("give", "edge server"),
        ("finish", "edge server"),
    ]  # fmt: skip
    each = [fleet.server.milliseconds(*kind) for kind in asked]
    plain = statistics.median(
        r.measured.seconds for r in _counted(records) if r.measured and r.round % INTERVAL > 1
    )
    ends = [
        sum(r.measured.seconds - plain for r in pair if r.measured)
        for pair in zip(records[INTERVAL - 1 :: INTERVAL], records[INTERVAL::INTERVAL], strict=False)
    ]
    cells = " | ".join(f"{value:.1f} ms" for value in (*each, sum(each), 1e3 * statistics.median(ends)))
    return f"| {fleet.devices} | {cells} |"


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────


REPORT = """# What a deployment costs beside compute

`python -m benchmarks.bench_deploy`, {date}, {hardware}, torch {torch}, grpc {grpc}. Other programs ran on the
machine at the same time: its load was {before:.1f} before the benchmark and {after:.1f} after it.

## Data plane

Activations go to another process and come back, one exchange after the other. *hasfl* asks with
`PartyServer.ask`: tensors become frames, frames become tensors at the other end, and once more on the way
back. *Bare gRPC* sends as many bytes on a bidirectional stream of the same gRPC with the same TLS, and looks
at none of them. Both run in turn, in short blocks, and the medians over blocks count. At least 70 % are asked
for. Training asks from another thread than the one in which gRPC runs. A bare stream that is used so is in
the columns "other thread".

{speed}

A small message has fixed costs beside its bytes. Packing and unpacking at both ends take 0.2 to 0.3 ms together, and
the way from thread to thread and back 0.1 to 0.2 ms. For 1 MB, the four copies between tensors and frames take about
0.6 ms. Tensors get memory of their own on purpose: who keeps one keeps no frame, and who writes to one harms no frame.

## Rounds

The small CNN on digits, cut 2. The overhead of a round is what it takes on the wall at the fed server, less
the compute of the slowest device and of the edge server. At most 10 ms a round and device are asked for. All
processes share the cores of this machine, so with many devices a round mostly waits for a core. Medians over
rounds after the first interval.

{rounds}

## Control messages of an interval

What the fed server waits for (medians, b = 1), with sub-models of 20 kB in `begin` and `give`. The last
column is all that the end of an interval adds to the two rounds beside it: these messages, the plan, and the
checkpoints of both servers.

{messages}
"""


def report(quick: bool) -> str:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        speed = throughput(Path(folder), BLOCKS // 4 if quick else BLOCKS)
    table, messages = fleets(DEVICES[:-1] if quick else DEVICES, ROUNDS)
    return REPORT.format(
        date=datetime.date.today(),
        hardware=_hardware(),
        torch=torch.__version__,
        grpc=grpc.__version__,
        before=before,
        after=os.getloadavg()[0],
        speed="\n".join(speed),
        rounds="\n".join(table),
        messages="\n".join(messages),
    )


def _hardware() -> str:
    return f"{os.cpu_count()}-core {platform.machine()}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--party", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.party:
        kind, port, keys = arguments.party
        party(kind, int(port), Path(keys))
        return
    text = report(arguments.quick)
    path = HERE / f"deploy_{_hardware().replace(' ', '-')}_{datetime.date.today()}.md"
    path.write_text(text)
    print(text, path, sep="\n")


if __name__ == "__main__":
    main()
