"""A small server that keeps what MLflow's tracking server would keep, by its published interface."""

import json
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

PREFIX = "/api/2.0/mlflow/"


@dataclass
class KeptRun:
    run_id: str
    name: str
    start: int
    tags: dict[str, str]
    end: int = 0
    status: str = "RUNNING"
    parameters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, list[tuple[int, float, int]]] = field(default_factory=lambda: defaultdict(list))

    def as_json(self) -> dict[str, Any]:
        last = {name: points[-1] for name, points in self.metrics.items()}
        return {
            "info": {"run_id": self.run_id, "status": self.status},
            "data": {
                "metrics": [
                    {"key": name, "step": step, "value": value} for name, (step, value, _) in last.items()
                ],
                "params": [{"key": name, "value": value} for name, value in self.parameters.items()],
            },
        }


class FakeServer:
    """Serves at a free port of this machine while it is entered."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, KeptRun] = {}
        self.batches: list[list[dict[str, Any]]] = []
        self.authorizations: list[str | None] = []
        self.failures = 0  # calls that fail before the next one succeeds
        self.answer: bytes | None = None  # to every call, instead of what was asked for
        self.moves_to: str | None = None  # where every call is sent instead
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.handle(self, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.handle(self, json.loads(body))

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def handle(self, call: BaseHTTPRequestHandler, fields: dict[str, Any]) -> None:
        self.authorizations.append(call.headers["Authorization"])
        status, answer = self._answer(urlsplit(call.path).path.removeprefix(PREFIX), call.path, fields)
        call.send_response(status)
        if self.moves_to is not None:
            call.send_header("Location", self.moves_to)
        call.send_header("Content-Length", str(len(answer)))
        call.end_headers()
        call.wfile.write(answer)

    def _answer(self, what: str, path: str, fields: dict[str, Any]) -> tuple[int, bytes]:
        if self.moves_to is not None:
            return 302, b""
        if self.answer is not None:
            return 200, self.answer
        if self.failures:
            self.failures -= 1
            return 503, b"busy"
        if what == "experiments/get-by-name":
            (name,) = parse_qs(urlsplit(path).query)["experiment_name"]
            if name not in self.experiments:
                return 404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such experiment"}'
            return 200, json.dumps({"experiment": {"experiment_id": self.experiments[name]}}).encode()
        return 200, json.dumps(self._done(what, fields)).encode()

    def _done(self, what: str, fields: dict[str, Any]) -> dict[str, Any]:
        match what:
            case "experiments/create":
                self.experiments[fields["name"]] = str(len(self.experiments) + 1)
                return {"experiment_id": self.experiments[fields["name"]]}
            case "runs/search":
                key, _, value = fields["filter"].partition(" = ")
                tag = key.removeprefix("tags.").strip("`")
                found = [run for run in self.runs.values() if run.tags.get(tag) == value.strip("'")]
                return {"runs": [run.as_json() for run in found]} if found else {}
            case "runs/create":
                tags = {tag["key"]: tag["value"] for tag in fields["tags"]}
                run = KeptRun(f"run{len(self.runs)}", fields["run_name"], fields["start_time"], tags)
                self.runs[run.run_id] = run
                return {"run": run.as_json()}
            case "runs/update":
                self.runs[fields["run_id"]].status = fields["status"]
                self.runs[fields["run_id"]].end = fields.get("end_time", 0)
                return {}
        assert what == "runs/log-batch", what
        return self._log(self.runs[fields["run_id"]], fields.get("metrics", []), fields.get("params", []))

    def _log(
        self, run: KeptRun, metrics: list[dict[str, Any]], parameters: list[dict[str, Any]]
    ) -> dict[str, Any]:
        self.batches.append(metrics)
        for metric in metrics:
            run.metrics[metric["key"]].append((metric["step"], metric["value"], metric["timestamp"]))
        for parameter in parameters:
            assert run.parameters.setdefault(parameter["key"], parameter["value"]) == parameter["value"]
        return {}
