"""Writes the rounds of a run to an MLflow tracking server.

A step is a round. The time of a value is the beginning of the run plus its virtual time, so MLflow's axis
"Time" shows virtual time. An export that is repeated goes on where the server's copy ends.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
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
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # of one call, by MLflow's interface
LONGEST_PARAMETER = 500  # characters; older servers refuse more
STATUS = {"running": "RUNNING", "stopped": "KILLED", "finished": "FINISHED"}
NOT_FOUND = 404
LAST = "loss"  # the value that is written last of a round

Metric = dict[str, Any]  # as MLflow's interface has it: key, value, timestamp and step


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
        """Log the values of rounds; those of one round go in one call."""
        for together in _calls([self._metrics(record) for record in records]):
            self._log({"metrics": together})

    def close(self, state: RunState) -> None:
        """Log the result of a finished run, and say in which state the run is."""
        last = next(self._run.newest_records(), None)
        rounds, clock = (0, 0.0) if last is None else (last.round, last.clock)
        if state == "finished":
            found = result_of(self._run)
            self._log({"metrics": [self._metric(name, found[name], rounds, clock) for name in found]})
        ended = {} if state == "running" else {"end_time": self._time(clock)}
        self._server.post("runs/update", {"run_id": self.run_id, "status": STATUS[state], **ended})

    def abandon(self) -> None:
        """The server keeps what it has; a repeated export goes on from there."""

    def _experiment_id(self) -> str:
        try:
            found = self._server.get("experiments/get-by-name", experiment_name=self.experiment)
            return str(found["experiment"]["experiment_id"])
        except ServerFault as fault:
            if fault.status != NOT_FOUND:
                raise
        return str(self._server.post("experiments/create", {"name": self.experiment})["experiment_id"])

    def _found(self) -> dict[str, Any] | None:
        """The run that an earlier export made on the server."""
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
        """Log what the run was begun with. A server keeps a parameter as it was first written."""
        new = [
            {"key": name, "value": value}
            for name, value in parameters_of(self._run).items()
            if name not in known and len(value) <= LONGEST_PARAMETER
        ]
        for first in range(0, len(new), MOST_PARAMETERS):
            self._log({"params": new[first : first + MOST_PARAMETERS]})

    def _metrics(self, record: RoundRecord) -> list[Metric]:
        found = values_of(record)
        return [self._metric(name, found[name], record.round, record.clock) for name in found]

    def _metric(self, name: str, value: float, step: int, clock: float) -> Metric:
        return {"key": name, "value": value, "timestamp": self._time(clock), "step": step}

    def _time(self, clock: float) -> int:
        """The beginning of the run plus virtual seconds, in the milliseconds since 1970 that MLflow takes."""
        return round(MILLISECONDS * (self._begun + clock))

    def _log(self, fields: dict[str, Any]) -> None:
        self._server.post("runs/log-batch", {"run_id": self.run_id, **fields})


def _calls(rounds: Iterable[list[Metric]]) -> Iterator[list[Metric]]:
    """The values of all rounds, in calls that are small enough and divide no round."""
    together: list[Metric] = []
    for new in rounds:
        if together and len(together) + len(new) > MOST_METRICS:
            yield together
            together = []
        together = together + new
    if together:
        yield together
