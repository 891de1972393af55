"""Workers of devices for tests of faults: some misbehave, some reach the servers by a detour."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import torch

from hasfl.deployment import answering, joining, worker
from hasfl.deployment.answering import ServerAddress
from hasfl.deployment.channels import MOST_FRAME_BYTES, MOST_MESSAGE_BYTES, open_channel
from hasfl.deployment.fields import Message
from hasfl.deployment.programs import WorkerSettings
from hasfl.deployment.wire import Frame, pack, unpack

LATE_SECONDS = 12.0  # more than the deadline of a round
MISBEHAVIOUR_FILE = "misbehaviour"  # in the state folder; its text names what the worker does wrong


def main() -> None:
    """Run the worker of a device that is faulty: `python -m tests.deployment.fault_workers KIND SETTINGS`."""
    kind, path = sys.argv[1:]
    FAULTY[kind](WorkerSettings(**json.loads(Path(path).read_text())))
    worker.main()


def detour(settings: WorkerSettings) -> None:
    """Find servers at other addresses; `listen` says which: "edge=detour fed=detour"."""
    detours = dict(pair.split("=") for pair in settings.listen.split())

    def place(role: str, address: str, folder: Path) -> ServerAddress:
        return ServerAddress(role, detours[address], folder)

    vars(joining)["ServerAddress"] = place


def misbehave(settings: WorkerSettings) -> None:
    """Do wrong what a file in the state folder names, while the file is there."""
    file, honest = Path(settings.state) / MISBEHAVIOUR_FILE, answering._Conversation._answer

    def answer(self: Any, data: bytes, arrived: float) -> bytes:
        right = honest(self, data, arrived)
        kind = unpack(data).message.kind
        if not file.exists():
            return right
        asked, change = MISBEHAVIOURS[file.read_text()]
        return change(right) if kind == asked else right

    answering._Conversation._answer = answer  # type: ignore[method-assign]
    vars(answering)["open_channel"] = _channel_without_limit


def _channel_without_limit(role: str, address: str, folder: Path, **_: object) -> grpc.Channel:
    return open_channel(role, address, folder, most_bytes=MOST_MESSAGE_BYTES)


def _changed(change: Callable[[Frame], Message]) -> Callable[[bytes], bytes]:
    """Another message in a well-formed frame."""

    def changed(right: bytes) -> bytes:
        frame = unpack(right)
        return pack(change(frame), id=frame.id, times=frame.times)

    return changed


def _tensors(change: Callable[[torch.Tensor], torch.Tensor], *names: str) -> Callable[[bytes], bytes]:
    """Other tensors; without names, all of them."""

    def changed(frame: Frame) -> Message:
        message = frame.message
        tensors = {
            name: change(tensor) if name in names or not names else tensor
            for name, tensor in message.tensors.items()
        }
        return Message(message.kind, message.fields, tensors)

    return _changed(changed)


def _with_nonsense(frame: Frame) -> Message:
    return Message(frame.message.kind, {**frame.message.fields, "resources": "much"}, frame.message.tensors)


def _not_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * torch.nan if tensor.is_floating_point() else tensor


def _older(frame: Frame) -> Message:
    fields = {**frame.message.fields, "interval": frame.message.fields["interval"] - 1}
    return Message(frame.message.kind, fields, frame.message.tensors)


def _of_question_before(right: bytes) -> bytes:
    frame = unpack(right)
    return pack(frame.message, id=frame.id - 1, times=frame.times)


def _late(right: bytes) -> bytes:
    time.sleep(LATE_SECONDS)
    return right


# What a worker can do wrong: the question after which it does so, and what it makes of its right answer.
MISBEHAVIOURS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "activations that are not numbers": ("forward", _tensors(_not_numbers, "activations")),
    "labels that do not exist": ("forward", _tensors(lambda t: t + 99, "labels")),
    "layers of another shape": ("give", _tensors(lambda t: t.flatten()[:1])),
    "layers of an old interval": ("give", _changed(_older)),
    "an answer to an old question": ("backward", _of_question_before),
    "resources that are no table": ("begin", _changed(_with_nonsense)),
    "answers that come late": ("forward", _late),
    "an oversized frame": ("forward", lambda right: bytes(MOST_FRAME_BYTES + 1)),
    "random bytes": ("backward", lambda right: os.urandom(1000)),
}
FAULTY = {"detoured": detour, "misbehaving": misbehave}

if __name__ == "__main__":
    main()
