"""The page of `plan`, as a file (--html) or served on this machine (--serve)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import typer

from hasfl.cli.plans.constants_view import guess_columns, guess_rows, guess_sentences
from hasfl.cli.plans.plan_view import limits, pace, savings
from hasfl.cli.plans.what_if import Setting, WhatIf
from hasfl.errors import InputError
from hasfl.plan import Plan, PlanReport
from hasfl.planning.advice.sensitivity import Mistake, in_words
from hasfl.planning.advice.why import Upgrades
from hasfl.planning.guess_ratios import ratios
from hasfl.problem import Problem
from hasfl.replacing import replace_file, write_text
from hasfl.report.page.plan_page import Advice, GuessTable, PlanPage
from hasfl.report.page.plan_page_server import PageServer
from hasfl.runs.questions import Question

ORIGINS = {
    "given": "with given constants",
    "guessed": "with guessed constants",
    "measured": "with guessed constants and the rounds of a run",
    "estimated": "with constants that a run has estimated",
}
START_SECONDS = 15.0  # for the stops of a page that is served; chosen by hand, by how long one waits for it
ADVICE = "nothing was changed"  # if a page cannot be written


@dataclass(frozen=True, slots=True, eq=False)
class PagedPlan:
    """The page of a plan, and what plans anew for it."""

    page: PlanPage
    what_if: WhatIf
    seconds: float  # for one plan, and for all stops of the sliders together

    @classmethod
    def of(
        cls,
        asked: Question,
        report: PlanReport,
        search: Callable[..., PlanReport],
        upgrades: Upgrades | None,
        mistakes: Sequence[Mistake] | None,
        *,
        name: str,
        seconds: float,
    ) -> Self:
        """The page of a plan that was found, without sliders yet."""

        def ask(problem: Problem, start: Plan | None, share: float) -> PlanReport:
            return search(problem, time_limit=share, start=start)

        what_if = WhatIf(asked, ask, report)
        page = PlanPage(
            name=Path(name).stem,
            about=_about(asked),
            base=what_if.base(),
            own=asdict(what_if.own),
            sliders=(),
            rounds_known=asked.rounds_known,
            remarks=asked.remarks,
            guesses=_guesses(report, asked),
            advice=_advice(report, asked, upgrades, mistakes),
        )
        return cls(page, what_if, seconds)

    def with_sliders(self, *, served: bool, tell: Callable[[str], None]) -> Self:
        """The same page with sliders, whose stops are planned now."""
        seconds = min(self.seconds, START_SECONDS) if served else self.seconds
        sliders = self.what_if.sliders(served=served, seconds=seconds, tell=tell)
        return replace(self, page=replace(self.page, sliders=sliders, served=served))

    def write(self, file: Path) -> int:
        """Write the page; returns its bytes."""
        text = self.page.html()
        replace_file(file, lambda opened: write_text(opened, text), advice=ADVICE)
        return len(text.encode())

    def serve(self, port: int) -> None:
        """Serve the page until Ctrl-C; port 0 is any free one."""
        try:
            server = PageServer(self.page.html(), self.answer, port)
        except OSError as error:
            raise InputError(
                f"--port must be a free port of this machine, got {port} ({error.strerror}): leave it out"
            ) from None
        typer.echo(f"the plan is at {server.address}\nCtrl-C ends the server")
        with server:
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                typer.echo("\nthe server has ended")

    def answer(self, written: Any) -> dict[str, Any]:
        """The plan for the setting that a page sent."""
        return self.page.shown(self.what_if.plan(Setting.of(written), seconds=self.seconds))


def _about(asked: Question) -> str:
    """The model, the devices and where the constants come from."""
    model = "" if asked.scenario is None else f"{asked.scenario.model_name} · "
    devices = len(asked.problem.fleet)
    return f"{model}{devices:,} {'device' if devices == 1 else 'devices'} · {ORIGINS[asked.constants]}"


def _guesses(report: PlanReport, asked: Question) -> GuessTable | None:
    found = ratios(report.plan, asked.problem)
    if not found:
        return None
    return GuessTable(
        columns=guess_columns(asked),
        rows=guess_rows(report, asked, found),
        answer="\n".join(guess_sentences(report, asked, found)),
    )


def _advice(
    report: PlanReport, asked: Question, upgrades: Upgrades | None, mistakes: Sequence[Mistake] | None
) -> Advice | None:
    if upgrades is None and mistakes is None:
        return None
    return Advice(
        pace=() if upgrades is None else pace(report, asked.problem),
        upgrades=() if upgrades is None else savings(report, asked, upgrades),
        limits=() if upgrades is None else limits(upgrades),
        mistakes=() if mistakes is None else in_words(mistakes),
    )
