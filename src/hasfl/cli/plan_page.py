"""The page of `plan`, as a file (--html) or served on this machine (--serve)."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import typer

from hasfl.arrays import MOST
from hasfl.cli.announcements import plan_in_words
from hasfl.cli.plan_view import advice, certificate, guess_table, warnings
from hasfl.errors import HasflError, InputError
from hasfl.fleet import Fleet
from hasfl.plan import Plan, PlanReport
from hasfl.planning.advice.sensitivity import Mistake, time_range
from hasfl.planning.advice.why import Upgrades
from hasfl.planning.intervals import Ask, try_intervals
from hasfl.problem import Problem
from hasfl.replacing import replace_file, write_text
from hasfl.report.page.columns import evenly
from hasfl.report.page.plan_page import Found, PlanPage, ShownPlan, Slider
from hasfl.report.page.plan_page_server import PageServer
from hasfl.runs.questions import Question

# ── plans for other values than the scenario's ───────────────────────────────────────────────────────────


# The stops of the sliders (positions with a ready plan). Chosen by hand, for about thirty plans in a file.
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)  # factors of compute, of rates, and of the number of devices
INTERVALS = (1, 2, 5, 10, 15, 25, 50)  # intervals in rounds; the measured law holds up to 50
MOST_DEVICES = 5_000  # largest enlarged fleet: a plan for it takes seconds
STEPS = 8  # positions of a served slider between a factor and its double
MOST_POSITIONS = 200  # most positions of a served slider
LARGEST_FACTOR = 64.0  # largest factor that the server accepts; the least is its inverse
SCALED: Mapping[str, tuple[str, ...]] = {  # fields of a fleet that each slider's factor multiplies
    "uplink": ("up_rate", "fed_up_rate"),
    "compute": ("flops",),
    "server": ("server_flops",),
}
LABELS = {
    "uplink": "Uplink of every device",
    "compute": "Compute of every device",
    "server": "Compute of the edge server",
    "interval": "Interval I",
    "devices": "Devices N",
}
UNITS = {"interval": "rounds", "devices": "devices"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The values to which the sliders are set."""

    uplink: float = 1.0  # factor of the scenario's uplinks; the next two are factors, too
    compute: float = 1.0
    server: float = 1.0
    interval: int
    devices: int

    @classmethod
    def of(cls, written: Any) -> "Setting":
        """The setting in a page's request; raises InputError for anything that no slider can send."""
        names = [field.name for field in fields(cls)]
        if not isinstance(written, dict) or sorted(written) != sorted(names):
            raise InputError(f"expected a table with {', '.join(names)}, got something else")
        return cls(
            uplink=_factor("uplink", written["uplink"]),
            compute=_factor("compute", written["compute"]),
            server=_factor("server", written["server"]),
            interval=_count("interval", written["interval"]),
            devices=_count("devices", written["devices"]),
        )

    def scaled(self, fleet: Fleet) -> Fleet:
        """The fleet with its rates and compute multiplied by the factors."""
        changed = {
            field: getattr(fleet, field) * getattr(self, name)
            for name, resources in SCALED.items()
            for field in resources
        }
        return replace(fleet, **changed)


def _factor(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 1 / LARGEST_FACTOR <= value <= LARGEST_FACTOR:
        least, most = 1 / LARGEST_FACTOR, LARGEST_FACTOR
        raise InputError(f"{name} must be a factor from {least:g} to {most:g}, got {str(value)[:20]}")
    return float(value)


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise InputError(f"{name} must be a whole number from 1 to {MOST:,}, got {str(value)[:20]}")
    return value


class WhatIf:
    """Plans for other settings of a question. `ask` makes a plan; `report` is the question's own plan."""

    def __init__(self, question: Question, ask: Ask, report: PlanReport) -> None:
        self.question, self.ask, self.report = question, ask, report
        problem = question.problem
        self.own = Setting(interval=problem.interval, devices=len(problem.fleet))
        self.most_devices = max(MOST_DEVICES, self.own.devices)
        self._resized = {self.own.devices: question}

    def base(self) -> ShownPlan:
        """The question's own plan, for the page."""
        return self._shown(self.report, self.question.problem)

    def plan(self, setting: Setting, *, seconds: float) -> Found:
        """The best plan for a setting that is found in `seconds`, or a sentence on why there is none."""
        if setting.devices > self.most_devices:
            return f"A fleet of {setting.devices:,} devices is too large for this page."
        try:
            if setting.devices not in self._resized:
                self._resized[setting.devices] = self.question.resized(setting.devices)
            question = self._resized[setting.devices]

            def at(interval: int) -> Problem:
                problem = question.at(interval)
                return replace(problem, fleet=setting.scaled(problem.fleet))

            known = question.rounds_known
            found = try_intervals(at, [setting.interval], self._ask, seconds=seconds, rounds_known=known)
        except HasflError as error:
            return f"There is no plan: {error}."
        (tried,) = found.tried
        return self._shown(found.best, at(setting.interval), tried.doubt)

    def _ask(self, problem: Problem, _: Any, seconds: float) -> PlanReport:
        """Make a plan, starting from the question's own plan if it has as many devices."""
        own = self.report.plan
        return self.ask(problem, own if len(own) == len(problem.fleet) else None, seconds)

    def _shown(self, report: PlanReport, problem: Problem, doubt: str = "") -> ShownPlan:
        known = self.question.rounds_known
        doubts = (f"The law of rounds is not known for this plan: {doubt}.",) if doubt else ()
        return ShownPlan(
            report=report,
            problem=problem,
            words=plan_in_words(report.plan, problem.fleet.names, of=len(problem.fleet)),
            certificate=""
            if report.status == "evaluated"
            else certificate(report, problem, rounds_known=known),
            time_range=time_range(report, problem) if known else None,
            doubts=(*doubts, *warnings(report, problem)),
        )

    def sliders(self, *, served: bool, seconds: float, tell: Callable[[str], None]) -> list[Slider]:
        """All sliders, with plans for their stops that take at most `seconds` together."""
        stops = {name: self._stops(name) for name in LABELS}
        names = [name for name in LABELS if len(stops[name]) > 1]
        plans = sum(len(stops[name]) - 1 for name in names)
        made, base, sliders = 0, self.base(), []
        deadline = time.monotonic() + seconds
        for name in names:
            own, planned = getattr(self.own, name), dict[float, Found]()
            for value in stops[name]:
                if value == own:
                    planned[value] = base
                    continue
                share = max(deadline - time.monotonic(), 0.0) / (plans - made)
                made += 1
                tell(f"planning stop {made} of {plans} of the sliders")
                changed: dict[str, Any] = {name: value}
                planned[value] = self.plan(replace(self.own, **changed), seconds=share)
            sliders.append(
                Slider(
                    name=name,
                    label=LABELS[name],
                    unit=UNITS.get(name, "×"),
                    own=own,
                    positions=self._positions(name) if served else stops[name],
                    stops=planned,
                )
            )
        return sliders

    def _stops(self, name: str) -> list[float]:
        """The values of a slider with a ready plan, with the scenario's own value."""
        if name in SCALED:
            return list(FACTORS)
        own = getattr(self.own, name)
        if name == "interval":
            return _with_own(own, INTERVALS)
        if self.question.scenario is None:
            return [own]  # a problem file has no scenario from which to draw more devices
        return self._whole_devices(round(own * factor) for factor in FACTORS)

    def _positions(self, name: str) -> list[float]:
        """All positions of a served slider."""
        doublings = round(math.log2(max(FACTORS)))
        if name in SCALED:
            exponents = range(-doublings * STEPS, doublings * STEPS + 1)
            return [float(f"{2 ** (k / STEPS):.3g}") for k in exponents]
        own = getattr(self.own, name)
        if name == "interval":
            return _with_own(own, range(1, max(INTERVALS) + 1))
        most = int(max(FACTORS) * own)
        return self._whole_devices(1 + int(k) for k in evenly(most, MOST_POSITIONS))

    def _whole_devices(self, values: Iterable[int]) -> list[float]:
        return _with_own(self.own.devices, (n for n in values if 1 <= n <= self.most_devices))


def _with_own(own: int, values: Iterable[int]) -> list[float]:
    return sorted({own, *values})


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────


ORIGINS = {
    "given": "with given constants",
    "guessed": "with guessed constants",
    "measured": "with guessed constants and the rounds of a run",
    "estimated": "with constants that a run has estimated",
}
START_SECONDS = 15.0  # time limit for all stops of a served page; chosen by hand, as a person waits
ADVICE = "nothing was changed"  # end of the message if a page cannot be written


@dataclass(frozen=True, slots=True, eq=False)
class PagedPlan:
    """The page of a plan, and the planner of its sliders."""

    page: PlanPage
    what_if: WhatIf
    seconds: float  # time limit for one plan, and for all stops together

    @classmethod
    def of(
        cls,
        question: Question,
        report: PlanReport,
        search: Callable[..., PlanReport],
        upgrades: Upgrades | None,
        mistakes: Sequence[Mistake] | None,
        *,
        name: str,
        seconds: float,
    ) -> Self:
        """The page of a finished plan, without sliders."""

        def ask(problem: Problem, start: Plan | None, share: float) -> PlanReport:
            return search(problem, time_limit=share, start=start)

        what_if, devices = WhatIf(question, ask, report), len(question.problem.fleet)
        model = "" if question.scenario is None else f"{question.scenario.model_name} · "
        number = f"{devices:,} {'device' if devices == 1 else 'devices'}"
        page = PlanPage(
            name=Path(name).stem,
            about=f"{model}{number} · {ORIGINS[question.constants]}",
            base=what_if.base(),
            own=asdict(what_if.own),
            sliders=(),
            rounds_known=question.rounds_known,
            remarks=question.remarks,
            guesses=guess_table(report, question),
            advice=None
            if upgrades is None and mistakes is None
            else advice(report, question, upgrades, mistakes or ()),
        )
        return cls(page, what_if, seconds)

    def with_sliders(self, *, served: bool, tell: Callable[[str], None]) -> Self:
        """The same page with sliders; makes the plans for their stops."""
        seconds = min(self.seconds, START_SECONDS) if served else self.seconds
        sliders = self.what_if.sliders(served=served, seconds=seconds, tell=tell)
        return replace(self, page=replace(self.page, sliders=sliders, served=served))

    def write(self, file: Path) -> int:
        """Write the page; return the size of the file in bytes."""
        text = self.page.html()
        replace_file(file, lambda opened: write_text(opened, text), advice=ADVICE)
        return len(text.encode())

    def serve(self, port: int) -> None:
        """Serve the page until Ctrl-C; port 0 stands for any free port."""
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
        """The answer to a page's request: the plan for its setting."""
        return self.page.shown(self.what_if.plan(Setting.of(written), seconds=self.seconds))
