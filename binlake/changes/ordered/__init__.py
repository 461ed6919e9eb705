"""Row changes in commit order: which may run side by side, on which worker, as which SQL (as DM and the drainer do).

`keys` computes what two changes could collide on, `causality` detects collisions, `rounds` plans rounds, queues and
batches, `forms` and `merger` write the SQL.
"""

from binlake.changes.ordered.causality import Detector, Strategy, make_detector
from binlake.changes.ordered.forms import RowForms, Statement
from binlake.changes.ordered.keys import ChangeKeys, ConflictKey
from binlake.changes.ordered.merger import Change, Merger
from binlake.changes.ordered.rounds import OrderedPlan, PlanOptions

__all__ = [
    "Change",
    "ChangeKeys",
    "ConflictKey",
    "Detector",
    "Merger",
    "OrderedPlan",
    "PlanOptions",
    "RowForms",
    "Statement",
    "Strategy",
    "make_detector",
]
