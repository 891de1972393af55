"""The process of a fed server in a field test: the real training, with sessions that it offers by itself."""

import json
import logging
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from hasfl.deployment.channels import FED
from hasfl.deployment.orders import RunOrder
from hasfl.deployment.sessions.asking import PartyServer
from hasfl.deployment.training import train_on_fleet

OFFER_SECONDS = 0.2  # between two offers to a party that is not connected


def main() -> None:
    """Carry out the order that a file holds, and note the end of it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    told = json.loads(Path(sys.argv[-1]).read_text())
    order, sockets = RunOrder.from_json(told["order"]), {int(p): path for p, path in told["sockets"].items()}
    tokens = {party: secrets.token_hex(32) for party in sockets}
    Path(told["tokens"]).write_text(json.dumps(tokens))
    with PartyServer(FED, told["listen"], Path(told["keys"])) as links:
        links.allow(tokens)
        offers = {
            party: {"fed": told["listen"], "token": token, "run": str(order.request.path)}
            for party, token in tokens.items()
        }
        threading.Thread(target=keep_offering, args=(links, offers, sockets), daemon=True).start()
        assert links.wait_until_present(sockets, 60.0) == frozenset(sockets)
        train_on_fleet(links, order)
    Path(told["done"]).touch()


def keep_offering(links: PartyServer, offers: dict[int, dict[str, str]], sockets: dict[int, str]) -> None:
    """Offer a session to every party that is not connected; the same offer twice changes nothing."""
    while True:
        for party in offers.keys() - links.present():
            with suppress(OSError), socket.socket(socket.AF_UNIX) as desk:
                desk.settimeout(1.0)
                desk.connect(sockets[party])
                desk.sendall(json.dumps(offers[party]).encode() + b"\n")
                desk.recv(1000)
        time.sleep(OFFER_SECONDS)


if __name__ == "__main__":
    main()
