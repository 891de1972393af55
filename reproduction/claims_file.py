"""The words of the claims that are measured, in TOML: what the paper says, and why we found what we found."""

from collections.abc import Sequence

from pydantic import model_validator

from hasfl.runs.document import Document


class ClaimText(Document):
    """A claim of the paper, or a question beyond it."""

    name: str  # which also names its measure
    words: str
    figure: str  # the experiment that shows it, such as fig05
    paper: str = ""  # what the paper says or, of a question, what was asked for
    number: float | None = None  # in what the paper says; None where it says none
    because: str = ""  # why our verdict is what it is

    @model_validator(mode="after")
    def _number_is_in_the_words(self) -> "ClaimText":
        if self.number is not None and f"{self.number:g}" not in self.paper:
            raise ValueError(f"paper must contain the number {self.number:g}, got {self.paper!r}")
        return self


class ClaimsFile(Document):
    """A whole file. Claims are shown in its order."""

    claim: list[ClaimText]  # of the paper
    beyond: list[ClaimText]  # questions that the paper does not ask

    @model_validator(mode="after")
    def _names_differ(self) -> "ClaimsFile":
        if twice := _first_repeated([text.name for text in (*self.claim, *self.beyond)]):
            raise ValueError(f"every claim needs a name of its own, but two have the name {twice!r}")
        return self


def _first_repeated(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)
