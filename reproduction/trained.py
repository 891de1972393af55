"""The trainings of a panel, and the times at which strategies reached the accuracy of the comparison."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from hasfl.units import format_seconds
from reproduction.experiment import Experiment, Panel, Point
from reproduction.results import Results, RunResult, common_accuracy, pooled

TENFOLD = 9.95  # ratios from here on would read 10.00 or more, and are written without decimals
Runs = tuple[RunResult, ...]  # the results of one strategy in one scenario, one for each seed


@dataclass(frozen=True, slots=True)
class Trained:
    """The trainings of one panel that have a result, by point and strategy, in the panel's order."""

    experiment: Experiment
    panel: Panel
    runs: Mapping[tuple[Point, str], Runs]

    @classmethod
    def of(cls, experiment: Experiment, panel: Panel, results: Results) -> "Trained":
        """Find the trainings of a panel. A result without any evaluation is left out."""
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
        """The runs of the strategies that were trained at a point, by default at the first one."""
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
        """The accuracy at which times are compared: the panel's, or the highest that all runs reached.

        If a strategy of the paper's figure was trained, strategies that this figure lacks do not lower the
        accuracy.
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
        """The missing trainings, as short sentences; empty if all have results."""
        return [*self._untrained(), *self._short_of_seeds()]

    def _untrained(self) -> Iterator[str]:
        """Strategies without any result, by the names that commands take."""
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
        # Strategies, by (number of trained seeds, number of all seeds).
        short = dict[tuple[int, int], list[str]]()
        for strategy in self.panel.strategies:
            asked = len(self.experiment.seeds_of(self.panel, strategy))
            trained = [len(runs) for (_, name), runs in self.runs.items() if name == strategy and runs]
            if trained and min(trained) < asked:
                short.setdefault((min(trained), asked), []).append(strategy)
        for (count, asked), names in sorted(short.items()):
            yield f"only {count} of {asked} seeds: {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class Reach:
    """The time at which each seed of a strategy first had an accuracy, or else the end of its training."""

    seeds: tuple[int, ...]
    seconds: tuple[float, ...]  # virtual time of each seed
    reached: tuple[bool, ...]

    @classmethod
    def of(cls, runs: Sequence[RunResult], accuracy: float) -> "Reach":
        """The times of the runs of a strategy, one for each seed."""
        times = [run.time_to(accuracy) for run in runs]
        seeds, seconds = tuple(run.seed for run in runs), tuple(time.value for time in times)
        return cls(seeds, seconds, tuple(time.exact for time in times))

    @property
    def mean(self) -> float:
        """The mean time over seeds, which is only a lower limit if a seed did not reach the accuracy."""
        return fmean(self.seconds)

    @property
    def everywhere(self) -> bool:
        """Whether all seeds reached the accuracy."""
        return all(self.reached)

    def in_words(self, ours: "Reach | None" = None) -> str:
        """The mean time as a text, with its ratio to our strategy's time."""
        if not self.everywhere:
            if any(self.reached):
                return f"reached by {sum(self.reached)} of {len(self.reached)} seeds"
            return f"not reached in {format_seconds(self.mean)}"
        time, factor = format_seconds(self.mean), self._factor(ours)
        return f"{time} ({factor})" if factor else time

    def briefly(self, ours: "Reach | None" = None) -> str:
        """The ratio to our strategy's time as a text; the time itself if there is no ratio."""
        if not self.everywhere:
            return f"> {format_seconds(self.mean)}"
        return self._factor(ours) or format_seconds(self.mean)

    def factor(self, ours: "Reach | None") -> float | None:
        """The ratio to our strategy's time: the geometric mean over seeds that both have; None if unknown."""
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
