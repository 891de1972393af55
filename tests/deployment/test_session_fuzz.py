"""The data plane under random and mutated frames: the server goes on, for others too, with bounded memory."""

import logging
import queue
import random
import resource
import threading
import time
from collections import Counter

import grpc
import pytest
import torch

from hasfl.deployment.channels import method, open_channel
from hasfl.deployment.fields import Message
from hasfl.deployment.wire import pack, unpack
from tests.deployment.loopback import LONG, Site, folder_of, token

PONG = Message("pong", {"loss": 1.5}, {"x": torch.arange(300.0), "y": torch.arange(12)})
LETTERS = b"0123456789abcdefFIU,:"
MOST_GROWTH = 64 << 20  # bytes of memory; all frames of a batch together have several times as many


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """A frame with some of its bytes changed, cut off, repeated, or replaced altogether."""
    kind = chance.randrange(8)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        return frame[: chance.randrange(len(frame))]
    if kind == 2:
        return frame + chance.randbytes(chance.randrange(1, 100))
    if kind == 3:  # another length of the header
        return chance.choice([0, 1, 2**20, 2**63, chance.getrandbits(64)]).to_bytes(8, "little") + frame[8:]
    changed = bytearray(frame)
    if kind == 4:  # perhaps another header that makes sense
        changed[chance.randrange(8, min(len(frame), 400))] = chance.choice(LETTERS)
        return bytes(changed)
    end = len(frame) if kind == 5 else min(len(frame), 300)  # mostly in the header
    for _ in range(chance.randint(1, 8)):
        start = chance.randrange(end)
        if kind == 6:
            changed[start : start + 1] = chance.choice(
                [b"9" * 30, b"-", b'"', b"{", b"[" * 50, b"\\u0000", b"null"]
            )
        else:
            changed[start] = chance.randrange(256)
    return bytes(changed)


def attack(channel: grpc.Channel, hello: bytes, chance: random.Random) -> tuple[str, int]:
    """One stream: a mutated greeting, or mutated answers to pings until the server has had enough.

    Give the status with which the server ends it, and how many mutated frames it took.
    """
    sent = 0
    if chance.random() < 0.3:
        hello, sent = mutated(hello, chance), 1
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    outbox.put(hello)
    try:
        for data in channel.stream_stream(method("fed"))(iter(outbox.get, None)):
            now = time.monotonic()
            answer = pack(PONG, id=unpack(data).id, times={"arrived": now, "sent": now})
            sent += 1
            outbox.put(mutated(answer, chance) if sent < 5 else b"enough")
    except grpc.RpcError as error:
        return error.code().name, sent
    finally:
        outbox.put(None)
    return "OK", sent


def attacks(site: Site, count: int, seed: int) -> Counter[str]:
    """Send so many mutated frames, over one connection; count the streams by their status."""
    chance = random.Random(seed)
    hello = pack(Message("hello", {"token": token(0), "party": 0, "flops": 1e9}), id=0)
    seen: Counter[str] = Counter()
    with open_channel("fed", site.address, folder_of(site.keys, 0)) as channel:
        while count > 0:
            status, sent = attack(channel, hello, chance)
            seen[status] += 1
            count -= sent
    return seen


@pytest.mark.parametrize(
    ("count", "seed"),
    [
        (2000, 0),
        pytest.param(5000, 1, marks=pytest.mark.slow),
        *(pytest.param(5000, seed, marks=pytest.mark.fleet) for seed in range(2, 6)),
    ],
)
def test_mutated_frames(site: Site, count: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """The longest lane sends four more batches of 5,000 frames."""
    caplog.set_level(logging.ERROR)  # each refused stream is a warning
    site.connect(1)
    attacks(site, 50, seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen: Counter[str] = Counter()
    attacking = threading.Thread(target=lambda: seen.update(attacks(site, count, seed)), daemon=True)
    attacking.start()
    asked = 0
    while attacking.is_alive():
        assert set(site.server.ask({1: Message("question", {"number": asked})}, LONG)) == {1}
        asked += 1
        attacking.join(0.05)
    assert seen.keys() == {"INVALID_ARGUMENT", "UNAUTHENTICATED", "ABORTED"}
    assert sum(seen.values()) > count / 2
    assert asked > 1, "the other device was asked all the while"
    growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert growth < MOST_GROWTH
    site.connect(0)
    assert set(site.server.ask({0: Message("question"), 1: Message("question")}, LONG)) == {0, 1}
