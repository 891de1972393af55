"""How unlike the labels of devices are, for the first plan.

Each device tells the edge server how many samples of each class it trains on. The edge server learns nothing
new by this, since labels come with activations. The fed server learns one number for all devices together.
"""

from collections.abc import Mapping

import numpy as np
import torch

from hasfl.arrays import IntN
from hasfl.data.partition import unlikeness
from hasfl.parties.links import Links, Refused
from hasfl.parties.messages import Message
from hasfl.parties.speaking import tensor_of

SECONDS = 60.0  # that a device has to count its samples


def unlikeness_of(links: Links, sizes: Mapping[int, int]) -> float | None:
    """How unlike the labels of devices with so many samples are; None where samples have no classes.

    A device that does not answer does not count. One that answers wrongly is dropped.
    """
    answers = links.ask(dict.fromkeys(sizes, Message("count")), SECONDS)
    counts = []
    for device in sorted(answers):
        try:
            if (answer := answers[device].message).kind != "nothing":
                counts.append(_counts_of(answer, sizes[device]))
        except Refused as refused:
            links.drop(device, str(refused))
    if not counts:
        return None
    held = [np.flatnonzero(each) for each in counts]
    classes = np.unique(np.concatenate(held))  # those that somebody holds: classes may have any number
    table = np.zeros((len(counts), len(classes)), dtype=np.int64)
    for row, each, own in zip(table, counts, held, strict=True):
        row[np.searchsorted(classes, own)] = each[own]
    return unlikeness(table)


def _counts_of(message: Message, samples: int) -> IntN:
    """The numbers of samples of each class, which must sum to the number of samples."""
    found = tensor_of(message, "classes")
    if found.dtype != torch.int64 or found.dim() != 1 or (found < 0).any() or int(found.sum()) != samples:
        raise Refused(f"the counts of classes must be whole numbers that sum to {samples}")
    counts: IntN = found.numpy()
    return counts
