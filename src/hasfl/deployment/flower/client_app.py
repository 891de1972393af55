"""What a SuperNode starts for each message: it hands a session to the worker beside it, and ends.

The data, the model and torch stay in the worker, which lives longer than any message.
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

SESSION = "session"  # the name of the only message
OFFER = "offer"
ANSWER = "answer"
MOST_BYTES = 64 * 1024  # in an offer or an answer

app = ClientApp()
end_with_flower()


@app.train(SESSION)
def session(message: Message, context: Context) -> Message:
    """Hand the offer of a session to the worker of this node, and answer what it answers."""
    offer = message.content.config_records[OFFER]
    answer = hand_over(Path(os.environ[STATE_VARIABLE]) / SOCKET_FILE, dict(offer))
    return Message(RecordDict({ANSWER: ConfigRecord(answer)}), reply_to=message)


def hand_over(worker: Path, offer: dict[str, Any]) -> dict[str, Any]:
    """Send an offer to a worker's unix socket as one line of JSON, and wait for its answer, another line.

    An answer is an object whose values are texts, numbers or truth values; anything else is an error.
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
