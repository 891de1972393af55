"""Split federated learning on fleets of unequal devices: which batch size and cut layer for each, and why.

Importing this package imports no torch; what trains lives in `hasfl.runner` and the rooms behind it.
"""

from hasfl.errors import HasflError as HasflError
from hasfl.errors import Infeasible as Infeasible
from hasfl.errors import InputError as InputError
from hasfl.errors import TargetUnreachable as TargetUnreachable
from hasfl.fleet import Device as Device
from hasfl.fleet import Fleet as Fleet
from hasfl.fleet import FleetRanges as FleetRanges
from hasfl.fleet import draw_fleet as draw_fleet
from hasfl.plan import Plan as Plan
from hasfl.plan import PlanReport as PlanReport
from hasfl.planning.exact.planner import best_batches as best_batches
from hasfl.planning.exact.planner import best_cuts as best_cuts
from hasfl.planning.exact.planner import best_plan as best_plan
from hasfl.problem import Problem as Problem
from hasfl.profile import GradientStats as GradientStats
from hasfl.profile import Layer as Layer
from hasfl.profile import MeasuredStats as MeasuredStats
from hasfl.profile import Profile as Profile
from hasfl.record import Goal as Goal
from hasfl.record import RoundRecord as RoundRecord
from hasfl.seeds import Seeds as Seeds
from hasfl.theory.objective import evaluate as evaluate

__version__ = "0.1.0"


def read_problem(path: str) -> Problem:
    """Read a raw problem (JSON; "-" is standard input) or a scenario (TOML)."""
    from hasfl.runner.questions import read_problem as read  # brings pydantic, which only files need

    return read(path)
