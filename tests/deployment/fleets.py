"""A whole fleet in one process with real sockets and TLS, but without Flower."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hasfl.deployment.channels import FED
from hasfl.deployment.device_worker import DeviceWorker
from hasfl.deployment.edge_worker import EdgeWorker
