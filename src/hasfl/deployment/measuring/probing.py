"""How fast links are before the first round: messages to and fro, larger ones as long as they are quick."""

from collections.abc import Collection

import torch

from hasfl.deployment.links import Links, ask
from hasfl.deployment.messages import Probe, Probed
from hasfl.units import BITS_PER_BYTE

SIZES = tuple(2**power for power in (12, 15, 18, 21))  # bytes of a probe, from the first to the last
LONGEST = 0.2  # seconds that a probe should take at most in one direction; a larger one is not sent then
SECONDS = 120.0  # that a party has to answer a probe
SHORTEST = 1e-6  # seconds; a clock may say that a message took none


def answer_probe(question: Probe) -> Probed:
    """Send back as many bytes as are asked for, so that the asker learns how fast the link is."""
    return Probed(bytes=torch.zeros(question.count, dtype=torch.uint8))


def probe_rates(links: Links, parties: Collection[int]) -> dict[int, dict[str, float]]:
    """The bit/s of the links to parties, by the names of `Resources`; those who do not answer are missing.

    The links to the edge server are taken to be as fast as those to the fed server, which asks here.
    """
    rates: dict[int, dict[str, float]] = {}
    left = set(parties)
    for size, larger in zip(SIZES, (*SIZES[1:], SIZES[-1]), strict=True):
        probe = Probe(count=size, bytes=torch.zeros(size, dtype=torch.uint8))
        answers = ask(links, dict.fromkeys(left, probe), SECONDS)
        rates = {party: of for party, of in rates.items() if party not in left or party in answers}
        for party, answer in answers.items():
            up, down = (max(each, SHORTEST) for each in (answer.up_seconds, answer.down_seconds))
            fast = {"up_rate": BITS_PER_BYTE * size / up, "down_rate": BITS_PER_BYTE * size / down}
            rates[party] = fast | {f"fed_{name}": rate for name, rate in fast.items()}
            if max(up, down) * larger / size > LONGEST:
                left.discard(party)
        left &= answers.keys()
        if not left:
            break
    return rates
