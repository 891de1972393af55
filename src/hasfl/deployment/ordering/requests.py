"""What is checked before a run is ordered. Nothing here needs torch or Flower."""

from pathlib import Path
from typing import Any

from hasfl.errors import InputError
from hasfl.runs.request import RunRequest
from hasfl.runs.store import RunFolder, require_free


def require_splitting(chosen: Any, folder: Path) -> None:
    """Refuse ways of training that need no edge server, or that collect samples."""
    from hasfl.planning.strategies.catalogue import (
        strategy,  # brings SciPy, which takes half a second to import
    )

    found = strategy(chosen, folder)
    if found.paradigm.collects_data:
        raise InputError(
            f"{found.name} collects the samples of all devices at a server, and a fleet keeps its samples: "
            "choose a strategy that splits, such as hasfl or sfl"
        )
    if not found.paradigm.splits:
        raise InputError(
            f"{found.name} trains the whole model on every device, without an edge server: choose a "
            "strategy that splits, such as hasfl or sfl"
        )


def check_request(request: RunRequest, *, resume: bool) -> None:
    """Refuse a request that the fed server would refuse too, but later."""
    require_splitting(request.strategy, request.folder)
    training = request.scenario().training
    if training.score_last:
        raise InputError(
            "training.score_last is for simulations, because parties of a deployment judge the served model "
            "alone: leave it out"
        )
    if training.aggregation != "mean" or training.local_term is not None:
        raise InputError(
            "training.aggregation and training.local_term are for simulations, because the parties of a "
            "deployment take the mean of layers and the loss alone: leave them out"
        )
    if not resume:
        require_free(request.path)
    elif request.path.exists():
        with RunFolder.open(request.path) as folder:
            if folder.in_use:
                raise InputError(f"{request.path} is being trained already: wait until that run ends")
