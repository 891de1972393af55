"""The client app, which a SuperExec starts for each message: hands the offer to the worker, and ends.

The data, the model and torch stay in the worker, which runs longer than any app.
"""

import json
import os
import socket
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from hasfl.deployment.addresses import SOCKET_FILE, STATE_VARIABLE
from hasfl.deployment.lifetime import end_with_flower

SESSION = "session"  # name of the only message
OFFER = "offer"  # record of the message
ANSWER = "answer"  # record of the reply
MOST_BYTES = 64 * 1024  # bytes of a worker's answer; chosen by hand

app = ClientApp()
end_with_flower()


@app.train(SESSION)
def session(message: Message, context: Context) -> Message:
    """Hand the offer of a session to the worker of this node, and reply with the worker's answer."""
    offer = message.content.config_records[OFFER]
    answer = hand_over(Path(os.environ[STATE_VARIABLE]) / SOCKET_FILE, dict(offer))
    return Message(RecordDict({ANSWER: ConfigRecord(answer)}), reply_to=message)


def hand_over(worker: Path, offer: dict[str, Any]) -> dict[str, Any]:
    """Send an offer to a worker's unix socket as a line of JSON, and return the answer, another such line.

    The answer must be a JSON object. Values that are not texts, numbers or truth values are left out.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(worker))
        connection.sendall(json.dumps(offer).encode() + b"\n")
        with connection.makefile("rb") as lines:
            line = lines.readline(MOST_BYTES)
    answer = json.loads(line) if line.endswith(b"\n") else None
    if not isinstance(answer, dict):
        raise ValueError(f"the worker must answer one line with an object, got {line[:80]!r}")
    return {str(name): value for name, value in answer.items() if isinstance(value, str | int | float | bool)}
