"""The trainings of a panel, and when each strategy reached the accuracy that times are compared at."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from hasfl.units import format_seconds
from reproduction.experiment import Experiment, Panel, Point
from reproduction.results import Results, RunResult, common_accuracy, pooled

TENFOLD = 9.95  # ratios from here on are written without digits after the point
Runs = tuple[RunResult, ...]  # of one strategy in one scenario: one for each seed


@dataclass(frozen=True, slots=True)
class Trained:
    """The trainings of one panel that have a result, by point and strategy, in the panel's order."""

    experiment: Experiment
    panel: Panel
    runs: Mapping[tuple[Point, str], Runs]

    @classmethod
    def of(cls, experiment: Experiment, panel: Panel, results: Results) -> "Trained":
        """Find what was trained. A result without any evaluation counts as none."""
        runs = pooled(
            {
                (point, strategy, run.seed): run
                for point in panel.points
                for strategy in panel.strategies
                for run in results.of(point.scenario, strategy)
                if run.seed in experiment.seeds_of(panel, strategy) and run.clock.size
            }
        )
        return cls(
            experiment,
            panel,
            {
                (point, strategy): tuple(
                    runs[point, strategy, seed]
                    for seed in sorted(experiment.seeds_of(panel, strategy))
                    if (point, strategy, seed) in runs
                )
                for point in panel.points
                for strategy in panel.strategies
            },
        )

    def at(self, point: Point | None = None) -> dict[str, Runs]:
        """The strategies that were trained at a point; where none is given, at the first."""
        point = self.panel.points[0] if point is None else point
        return {
            strategy: self.runs[point, strategy]
            for strategy in self.panel.strategies
            if self.runs[point, strategy]
        }

    @property
    def is_empty(self) -> bool:
        """Whether the panel has nothing to draw."""
        return not any(self.runs.values())

    @property
    def accuracy(self) -> float | None:
        """The accuracy that times are compared at: the panel's, or the highest that all runs reached.

        Strategies that the paper does not have in this figure do not lower it, as long as one of the paper's
        was trained.
        """
        if self.panel.accuracy is not None:
            return self.panel.accuracy
        papers = [
            run
            for (_, strategy), runs in self.runs.items()
            for run in runs
            if strategy in self.experiment.paper
        ]
        return common_accuracy(papers or [run for runs in self.runs.values() for run in runs])

    def missing(self) -> list[str]:
        """What was not trained, as short sentences; empty if everything was."""
        return [*self._untrained(), *self._short_of_seeds()]

    def _untrained(self) -> Iterator[str]:
        """Names are those of the catalogue, so that a reader knows what to train."""
        places = {
            strategy: [point for point in self.panel.points if not self.runs[point, strategy]]
            for strategy in self.panel.strategies
        }
        whole = [name for name, gaps in places.items() if len(gaps) == len(self.panel.points)]
        partly = [
            f"{name} at {', '.join(point.label for point in gaps)}"
            for name, gaps in places.items()
            if gaps and name not in whole
        ]
        if names := [*whole, *partly]:
            yield f"not trained: {'; '.join(names) if partly else ', '.join(names)}"

    def _short_of_seeds(self) -> Iterator[str]:
        short = dict[tuple[int, int], list[str]]()  # strategies, by their trained seeds and by all of them
        for strategy in self.panel.strategies:
            asked = len(self.experiment.seeds_of(self.panel, strategy))
            trained = [len(runs) for (_, name), runs in self.runs.items() if name == strategy and runs]
            if trained and min(trained) < asked:
                short.setdefault((min(trained), asked), []).append(strategy)
        for (count, asked), names in sorted(short.items()):
            yield f"only {count} of {asked} seeds: {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class Reach:
    """When each seed of a strategy first had an accuracy; where it never had, the end of its training."""

    seeds: tuple[int, ...]
    seconds: tuple[float, ...]  # of virtual time
    reached: tuple[bool, ...]

    @classmethod
    def of(cls, runs: Sequence[RunResult], accuracy: float) -> "Reach":
        """Look up the runs of a strategy, one for each seed."""
        times = [run.time_to(accuracy) for run in runs]
        seeds, seconds = tuple(run.seed for run in runs), tuple(time.value for time in times)
        return cls(seeds, seconds, tuple(time.exact for time in times))

    @property
    def mean(self) -> float:
        """The mean over seeds. It is only a lower limit where a seed did not reach the accuracy."""
        return fmean(self.seconds)

    @property
    def everywhere(self) -> bool:
        """Whether all seeds reached the accuracy."""
        return all(self.reached)

    def in_words(self, ours: "Reach | None" = None) -> str:
        """The time as a text, beside its ratio to the time of ours."""
        if not self.everywhere:
            if any(self.reached):
                return f"reached by {sum(self.reached)} of {len(self.reached)} seeds"
            return f"not reached in {format_seconds(self.mean)}"
        time, factor = format_seconds(self.mean), self._factor(ours)
        return f"{time} ({factor})" if factor else time

    def briefly(self, ours: "Reach | None" = None) -> str:
        """The ratio to the time of ours alone; the time where there is none."""
        if not self.everywhere:
            return f"> {format_seconds(self.mean)}"
        return self._factor(ours) or format_seconds(self.mean)

    def factor(self, ours: "Reach | None") -> float | None:
        """How many times as long as ours: the geometric mean over seeds that both have; None if unknown."""
        if ours is None or not (self.everywhere and ours.everywhere):
            return None
        theirs = dict(zip(ours.seeds, ours.seconds, strict=True))
        pairs = [
            (time, theirs[seed])
            for seed, time in zip(self.seeds, self.seconds, strict=True)
            if seed in theirs
        ]
        return geometric_mean(time / other for time, other in pairs) if pairs else None

    def _factor(self, ours: "Reach | None") -> str:
        ratio = self.factor(ours)
        if ours is self or ratio is None:
            return ""
        return f"{ratio:.2f} ×" if ratio < TENFOLD else f"{ratio:.0f} ×"
