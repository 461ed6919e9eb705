"""Row changes in commit order: which may run side by side, on which worker, as which SQL (DM's and the drainer's way).

`keys` says what two changes could collide on, `causality` whether they do, `plan` makes rounds, queues and batches of
it, `forms` and `merger` the SQL.
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
