"""What parties say to each other. A party answers every message with one message.

docs/deploy.md lists the kinds of messages: who sends which, and what they may carry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A kind, plain values (whatever JSON can hold), and tensors by name."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    tensors: Mapping[str, Tensor] = field(default_factory=lambda: NOTHING)


Handler = Callable[[Message], Message]  # a party, as others see it
