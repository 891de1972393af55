"""The world: how a fleet changes during a run. Compute and links vary, and devices leave and come back.

A simulated world depends only on the seed and the round, so rounds may be queried in any order. A live world
is what devices report, and its rounds are queried in their order. Rounds count from 1. Intervals count from
0: interval k consists of rounds k I + 1 to (k + 1) I.
"""

from hasfl.world.absences import AlwaysThere as AlwaysThere
from hasfl.world.absences import RandomDropout as RandomDropout
from hasfl.world.absences import Schedule as Schedule
from hasfl.world.live import LiveWorld as LiveWorld
from hasfl.world.rates import Change as Change
from hasfl.world.rates import Fixed as Fixed
from hasfl.world.rates import RandomWalk as RandomWalk
from hasfl.world.rates import Redrawn as Redrawn
from hasfl.world.rates import Trace as Trace
from hasfl.world.world import ObservedWorld as ObservedWorld
from hasfl.world.world import World as World
