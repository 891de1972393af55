"""A real browser without a window, driven over a pipe by the DevTools protocol; it needs no package."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0  # seconds for an answer or for a condition
KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Tab": 9, "Home": 36, "End": 35, " ": 32}


def installed() -> str | None:
    """The path of a Chromium, if one is installed; the variable CHROMIUM may name another one."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One open page."""

    def __init__(self, process: "subprocess.Popen[bytes]", send: int, receive: int) -> None:
        self._process, self._send, self._receive = process, send, receive
        self._number, self._buffer, self._session = 0, b"", ""
        self.faults: list[str] = []  # exceptions, errors on the console, refusals of the page's policy
        self.requests: list[str] = []  # addresses that the page asked for

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result; events that come before it are kept."""
        self._number += 1
        own = self._number
        message = {"id": own, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            answer = self._next()
            if answer.get("id") == own:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)
        raise TimeoutError(method)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            chunk = os.read(self._receive, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(values["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.faults.append(json.dumps(values["args"])[:2000])
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.faults.append(json.dumps(values["entry"])[:2000])
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])

    def require_peace(self, file: Path) -> None:
        """No error, no warning, nothing that the page's policy refused, nothing asked for but the file."""
        assert self.faults == []
        assert set(self.requests) == {file.resolve().as_uri()}

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def move(self, x: float, y: float) -> None:
        """Put the pointer somewhere."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def forget(self) -> None:
        """Forget the faults and requests so far."""
        self.faults.clear()
        self.requests.clear()

    def show(
        self,
        place: Path | str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        media: str = "screen",
    ) -> float:
        """Open a file or an address and wait until its charts are drawn; returns the seconds it took."""
        mobile = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        began = time.monotonic()
        self.call("Page.navigate", url=place if isinstance(place, str) else place.resolve().as_uri())
        self.until("document.documentElement?.dataset.drawn === 'true' && document.readyState === 'complete'")
        frame = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(true))))"
        self.look(frame)  # the charts are on the screen
        return time.monotonic() - began

    def look(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.look(expression):
            assert time.monotonic() < deadline, f"never true: {expression}; {self.faults}"
            time.sleep(0.01)

    def press(self, key: str) -> None:
        """Press a key, as a person would."""
        values = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        self.call("Input.dispatchKeyEvent", type="rawKeyDown", **values)
        self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def picture(self, file: Path) -> None:
        """Save the whole page as an image."""
        height = self.look("document.documentElement.scrollHeight")
        width = self.look("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def printed(self, file: Path) -> None:
        """Save the page as it is printed."""
        found = self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        file.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """A tab of a new browser, whose profile is in this folder."""
    program = installed()
    assert program is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    words = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
    words += ["--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    words += ["--disable-dev-shm-usage", "--disable-background-networking"]
    if os.geteuid() == 0:
        words.append("--no-sandbox")  # Chromium refuses to run as root otherwise
    shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", *words]
    process = subprocess.Popen(shell, pass_fds=(to_read, from_write), stderr=subprocess.DEVNULL)
    os.close(to_read)
    os.close(from_write)
    tab = Tab(process, to_write, from_read)
    try:
        tab.attach()
        yield tab
    finally:
        process.terminate()
        process.wait(PATIENCE)
        os.close(to_write)
        os.close(from_read)
