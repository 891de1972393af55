"""All parties of a training in one process, for the jobs of the other engines' tests."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np

from hasfl.engines.job import Job
from hasfl.parties.computation import Computation
from hasfl.parties.device.party import Device
from hasfl.parties.edge.party import Edge
from hasfl.parties.edge.store import EdgeStore
from hasfl.parties.fed.engine import NetworkedEngine
from hasfl.parties.links import EDGE, DirectLinks
from hasfl.parties.own_samples import own_samples
from hasfl.profile import Profile
from hasfl.profiling.costs import count_layers


def computation_of(job: Job) -> Computation:
    """What one party knows: a copy of the model in training mode."""
    model = deepcopy(job.model)
    model.train()
    return Computation(
        model=model,
        updates=job.updates,
        seeds=job.data.seeds,
        loss=job.loss,
        metric=job.metric,
        half=job.half,
        serving=job.serving,
    )


def device_of(job: Job, index: int, held_out: float = 0.0, shares: Sequence[np.ndarray] | None = None) -> Device:
    """A device with its own samples alone."""
    shares = job.data.shares if shares is None else shares
    own = shares[index]
    data = own_samples(
        job.data.x[own],
        job.data.y[own],
        device=index,
        samples=[len(share) for share in shares],
        seeds=job.data.seeds,
        augment=job.data.augment,
        held_out=held_out,
    )
    profile = Profile.of(count_layers(job.model))
    return Device(index=index, computation=computation_of(job), data=data, profile=profile)


def networked(job: Job, *, folder: Path | None = None, **more: object) -> NetworkedEngine:
    """An engine whose parties are in this process."""
    devices = {i: device_of(job, i, **more) for i in range(len(job.data.shares))}
    links = DirectLinks({i: device.from_edge for i, device in devices.items()})
    computation = computation_of(job)
    edge = Edge(computation=computation, links=links, store=EdgeStore(computation, folder), test=job.test)
    parties = {i: device.from_fed for i, device in devices.items()}
    return NetworkedEngine(computation_of(job), DirectLinks(parties | {EDGE: edge.from_fed}))
