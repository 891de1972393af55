"""Compares the data plane with a bare stream: the same bytes through `PartyServer.ask` and gRPC alone.

`benchmarks/bench_deploy.py` prints the table. The other end of each stream is a process of its own:
`python -m benchmarks.data_plane KIND PORT KEYS`.
"""

import asyncio
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import torch

from hasfl.deployment.answering import ServerAddress, Stop, answer_questions
from hasfl.deployment.asking import PartyServer
from hasfl.deployment.channels import FED_NAME, handlers, method, open_channel, open_port, server_options
from hasfl.deployment.fields import Message
from hasfl.deployment.keys import DEVICES_FOLDER, make_keys

LOOPBACK = "127.0.0.1"
MEGABYTES = (0.1, 1.0, 10.0)  # sizes of activations
BLOCKS = 40  # number of blocks of exchanges, ours and bare ones in turn; their median counts
BLOCK_BYTES = 5e6  # least bytes that a block sends in each direction
FEWEST_EXCHANGES = 4  # least number of exchanges in a block
KINDS = 8  # number of messages in turn, because in training no message is in the processor's cache
NAME, TOKEN = "box", "token"
PARTY_SECONDS = 60.0  # time limit for a party to connect
SPEED_COLUMNS = (
    "activations", "hasfl", "bare gRPC", "bare, other thread", "ratio", "ratio, other thread",
    "hasfl, one exchange", "bare", "bare, other thread",
)  # fmt: skip


def party(kind: str, port: int, keys: Path) -> None:
    """Run the other end of a stream, which sends back every message that it receives."""
    folder, address = keys / DEVICES_FOLDER / NAME, f"{LOOPBACK}:{port}"
    if kind == "ours":
        hello = {"token": TOKEN, "party": 0}
        answer_questions(
            ServerAddress(FED_NAME, address, folder), hello, lambda q: Message("done", {}, q.tensors), Stop()
        )
        return
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with open_channel(FED_NAME, address, folder) as channel:
        outbox.put(b"hello")
        for data in channel.stream_stream(method(FED_NAME))(iter(outbox.get, None)):
            outbox.put(data)


@contextmanager
def other_end(kind: str, port: int, keys: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.data_plane", kind, str(port), str(keys)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class BareStream:
    """A server of grpc.aio with the same TLS and options, which exchanges bytes with a party."""

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
        server.add_generic_rpc_handlers(handlers(FED_NAME, self._session))
        self.port = open_port(server, f"{LOOPBACK}:0", keys / FED_NAME)
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
        """Send messages one after the other, each when the one before has come back."""

        async def to_and_fro() -> None:
            for data in messages:
                await self.context.write(data)
                assert len(await self.context.read()) == len(data)

        asyncio.run_coroutine_threadsafe(to_and_fro(), self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.over.set)


def throughput(folder: Path, *, quick: bool) -> list[str]:
    """The lines of a table of speeds and ratios."""
    blocks = BLOCKS // 4 if quick else BLOCKS
    keys = folder / "keys"
    make_keys(keys, devices=[NAME], fed=[LOOPBACK], edge=[LOOPBACK])
    bare = BareStream(keys)
    with PartyServer(FED_NAME, f"{LOOPBACK}:0", keys / FED_NAME) as ours:
        ours.allow({0: TOKEN})
        with other_end("ours", ours.port, keys), other_end("bare", bare.port, keys):
            assert ours.wait_until_present([0], PARTY_SECONDS)
            assert bare.greeted.wait(PARTY_SECONDS)
            lines = [row(SPEED_COLUMNS), rule(SPEED_COLUMNS)]
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
            if block > 0:  # the first block warms up
                seconds[name].append(taken)
    usual = {name: statistics.median(of) for name, of in seconds.items()}
    speeds = [f"{2 * size / each / 1e6:,.0f} MB/s" for each in usual.values()]
    ratios = [f"{usual[name] / usual['ours']:.0%}" for name in ("bare", "hop")]
    times = [f"{1e3 * each:.2f} ms" for each in usual.values()]
    return row([f"{megabytes:g} MB", *speeds, *ratios, *times])


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def rule(columns: Sequence[str]) -> str:
    return "|" + "--:|" * len(columns)


if __name__ == "__main__":
    party(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
