"""Workers and a training for tests of processes: parties that answer every question with the question."""

import time
from contextlib import AbstractContextManager
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from hasfl.deployment.asking import PartyServer
from hasfl.deployment.fields import Message
from hasfl.deployment.hosting.orders import RunOrder
from hasfl.deployment.hosting.worker import WorkerSettings
from hasfl.deployment.joining import DeviceWorker, EdgeWorker


class Echo:
    """Answers every question with the question."""

    def from_fed(self, question: Message) -> Message:
        return question

    def from_edge(self, question: Message) -> Message:
        return question


def open_worker(settings: WorkerSettings) -> AbstractContextManager[object]:
    keys, state = Path(settings.keys), Path(settings.state)
    certificate = x509.load_pem_x509_certificate((keys / "tls.crt").read_bytes())
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if name.value == "edge":
        return EdgeWorker(settings.listen, keys, state, lambda offer, links: Echo())
    return DeviceWorker(int(str(name.value).removeprefix("device-")), keys, state, lambda offer: Echo())


def ask_and_note(links: PartyServer, order: RunOrder) -> None:
    """Ask everybody again and again, write down who answers, and end when a file `end` appears."""
    folder = Path(order.path)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "answers.txt").open("a", buffering=1) as notes:
        while not (folder / "end").exists():
            answers = links.ask({party: Message("ping") for party in links.present()}, 5.0)
            notes.write(" ".join(str(party) for party in sorted(answers)) + "\n")
            time.sleep(0.2)
