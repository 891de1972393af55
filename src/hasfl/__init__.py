"""Split federated learning on fleets of unequal devices.

Plan: which batch size and cut layer each device should have, and how long training takes (`best_plan`).
Train: `simulate` trains a torch model over a fleet in virtual time.

    from hasfl import Dataset, FleetRanges, Seeds, draw_fleet, simulate

    fleet = draw_fleet(FleetRanges(devices=8), Seeds(0))
    for record in simulate(model, data, fleet, strategy="hasfl", learning_rate=0.1, rounds=30):
        print(record.round, record.accuracy, record.clock)

Importing this package imports NumPy and no torch. The names that need torch or pydantic are imported when
they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hasfl.constants import BoundConstants as BoundConstants
from hasfl.constants import MeasuredConstants as MeasuredConstants
from hasfl.errors import HasflError as HasflError
from hasfl.errors import Infeasible as Infeasible
from hasfl.errors import InputError as InputError
from hasfl.errors import TargetUnreachable as TargetUnreachable
from hasfl.fleet import Device as Device
from hasfl.fleet import Fleet as Fleet
from hasfl.fleet import FleetRanges as FleetRanges
from hasfl.fleet import draw_fleet as draw_fleet
from hasfl.goal import Goal as Goal
from hasfl.plan import Plan as Plan
from hasfl.plan import PlanReport as PlanReport
from hasfl.planning.exact.planner import best_batches as best_batches
from hasfl.planning.exact.planner import best_cuts as best_cuts
from hasfl.planning.exact.planner import best_plan as best_plan
from hasfl.planning.strategies.rules import Situation as Situation
from hasfl.problem import Problem as Problem
from hasfl.profile import Layer as Layer
from hasfl.profile import Profile as Profile
from hasfl.record import RoundRecord as RoundRecord
from hasfl.seeds import Seeds as Seeds
from hasfl.settings import Descent as Descent
from hasfl.settings import Machine as Machine
from hasfl.settings import Planning as Planning
from hasfl.settings import Serving as Serving
from hasfl.settings import Settings as Settings
from hasfl.theory.objective import evaluate as evaluate
from hasfl.world import World as World

if TYPE_CHECKING:
    from hasfl.data.dataset import Dataset as Dataset
    from hasfl.data.partition import partition as partition
    from hasfl.data.sources import load_dataset as load_dataset
    from hasfl.models.costs import count_layers as count_layers
    from hasfl.models.cutting import layered as layered
    from hasfl.models.layered_model import LayeredModel as LayeredModel
    from hasfl.models.layered_model import untie as untie
    from hasfl.models.networks import network as network
    from hasfl.runs.build import Simulation as Simulation
    from hasfl.runs.build import simulate as simulate
    from hasfl.runs.questions import read_problem as read_problem

__version__ = "0.1.0"

LAZY = {  # names that need torch or pydantic, with the modules that define them
    "Dataset": "hasfl.data.dataset",
    "LayeredModel": "hasfl.models.layered_model",
    "Simulation": "hasfl.runs.build",
    "count_layers": "hasfl.models.costs",
    "layered": "hasfl.models.cutting",
    "load_dataset": "hasfl.data.sources",
    "network": "hasfl.models.networks",
    "partition": "hasfl.data.partition",
    "read_problem": "hasfl.runs.questions",
    "simulate": "hasfl.runs.build",
    "untie": "hasfl.models.layered_model",
}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'hasfl' has no attribute {name!r}")
    try:
        return getattr(import_module(LAZY[name]), name)
    except ModuleNotFoundError as error:
        from hasfl.errors import MissingName

        raise MissingName(f"hasfl.{name} needs {error.name}: pip install 'hasfl[train]'") from error


def __dir__() -> list[str]:
    return sorted([*globals(), *LAZY])
