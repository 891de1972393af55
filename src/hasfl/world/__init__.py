"""How a fleet changes over a run: rates that vary, and devices that come and go.

Everything is a function of the seed and the round, so rounds may be asked for in any order. Rounds count
from 1; interval k holds rounds k I + 1 to (k + 1) I.
"""

from hasfl.world.absences import AlwaysThere as AlwaysThere
from hasfl.world.absences import RandomDropout as RandomDropout
from hasfl.world.absences import Schedule as Schedule
from hasfl.world.rates import Change as Change
from hasfl.world.rates import Fixed as Fixed
from hasfl.world.rates import RandomWalk as RandomWalk
from hasfl.world.rates import Redrawn as Redrawn
from hasfl.world.rates import Trace as Trace
from hasfl.world.world import World as World
