"""Exports the rounds of a run to an MLflow tracking server.

A step is a round. The time of a value is the start of the run plus the virtual time of the round, so MLflow's
axis "Time" shows virtual time. A repeated export continues after the last round that the server has.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hasfl.record import RoundRecord
from hasfl.runs.exports.tracking_server import ServerFault, TrackingServer
from hasfl.runs.exports.values import (
    MILLISECONDS,
    begun_at,
    identity_of,
    parameters_of,
    result_of,
    values_of,
)
from hasfl.runs.store import RunFolder, RunState

EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"  # the environment variable that MLflow itself uses
IDENTITY = "hasfl.identity"  # the tag by which a repeated export finds its run
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # limits of one call in MLflow's REST interface
LONGEST_PARAMETER = 500  # the most characters of a parameter; older servers refuse longer ones
STATUS = {"running": "RUNNING", "stopped": "KILLED", "finished": "FINISHED"}
NOT_FOUND = 404  # status of HTTP
LAST = "loss"  # the value of a round that is written last; its step is the last round that is complete

Metric = dict[str, Any]  # a metric in MLflow's REST interface: key, value, timestamp and step


class ServerRun:
    """The copy of a run on a tracking server."""

    def __init__(self, run: RunFolder, server: TrackingServer) -> None:
        self._run, self._server, self._begun = run, server, begun_at(run)
        self.experiment = os.environ.get(EXPERIMENT) or "hasfl"
        try:
            self.experiment_id = self._experiment_id()
            found = self._found() or self._created()
            self.run_id = str(found["info"]["run_id"])
            kept = found.get("data", {})
            steps = {metric["key"]: int(metric.get("step", 0)) for metric in kept.get("metrics", ())}
            known = {parameter["key"] for parameter in kept.get("params", ())}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerFault(
                f"{server.address} must answer as an MLflow tracking server, but does not ({error!r}): check "
                "the address"
            ) from None
        self.written = steps.get(LAST, 0)
        self._log_parameters(known)

    def write(self, records: Sequence[RoundRecord]) -> None:
        """Log the values of rounds; all values of a round are in the same call."""
        rounds = [self._metrics(values_of(record), record.round, record.clock) for record in records]
        for together in _calls(rounds):
            self._log({"metrics": together})

    def close(self, state: RunState) -> None:
        """Log the result of a finished run, and set the state of the run on the server."""
        last = next(self._run.newest_records(), None)
        rounds, clock = (0, 0.0) if last is None else (last.round, last.clock)
        if state == "finished":
            self._log({"metrics": self._metrics(result_of(self._run), rounds, clock)})
        ended = {} if state == "running" else {"end_time": self._time(clock)}
        self._server.post("runs/update", {"run_id": self.run_id, "status": STATUS[state], **ended})

    def abandon(self) -> None:
        """Do nothing: the server keeps its rounds, and a repeated export continues after them."""

    def _experiment_id(self) -> str:
        try:
            found = self._server.get("experiments/get-by-name", experiment_name=self.experiment)
            return str(found["experiment"]["experiment_id"])
        except ServerFault as fault:
            if fault.status != NOT_FOUND:
                raise
        return str(self._server.post("experiments/create", {"name": self.experiment})["experiment_id"])

    def _found(self) -> dict[str, Any] | None:
        """The run that an earlier export created on the server; None if there is none."""
        asked = {
            "experiment_ids": [self.experiment_id],
            "filter": f"tags.`{IDENTITY}` = '{identity_of(self._run)}'",
            "max_results": 1,
        }
        return next(iter(self._server.post("runs/search", asked).get("runs", ())), None)

    def _created(self) -> dict[str, Any]:
        asked = {
            "experiment_id": self.experiment_id,
            "run_name": self._run.path.resolve().name,
            "start_time": self._time(0.0),
            "tags": [
                {"key": IDENTITY, "value": identity_of(self._run)},
                {"key": "hasfl.folder", "value": str(self._run.path.resolve())},
            ],
        }
        return dict(self._server.post("runs/create", asked)["run"])

    def _log_parameters(self, known: set[str]) -> None:
        """Log the parameters that the server does not know. A server never changes a parameter."""
        new = [
            {"key": name, "value": value}
            for name, value in parameters_of(self._run).items()
            if name not in known and len(value) <= LONGEST_PARAMETER
        ]
        for first in range(0, len(new), MOST_PARAMETERS):
            self._log({"params": new[first : first + MOST_PARAMETERS]})

    def _metrics(self, values: Mapping[str, float], step: int, clock: float) -> list[Metric]:
        at = self._time(clock)
        return [
            {"key": name, "value": value, "timestamp": at, "step": step} for name, value in values.items()
        ]

    def _time(self, clock: float) -> int:
        """The start of the run plus virtual time, in milliseconds since 1970, as MLflow needs it."""
        return round(MILLISECONDS * (self._begun + clock))

    def _log(self, fields: dict[str, Any]) -> None:
        self._server.post("runs/log-batch", {"run_id": self.run_id, **fields})


def _calls(rounds: Iterable[list[Metric]]) -> Iterator[list[Metric]]:
    """The metrics of all rounds in groups for one call each; no group is too large or divides a round."""
    together: list[Metric] = []
    for new in rounds:
        if together and len(together) + len(new) > MOST_METRICS:
            yield together
            together = []
        together = together + new
    if together:
        yield together
