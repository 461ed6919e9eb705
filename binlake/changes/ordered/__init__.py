"""Row changes in commit order: which may run in parallel, on which worker, as which SQL (as in DM and the drainer).

`keys` computes the values on which two changes can collide, `causality` detects collisions, `rounds` plans rounds,
queues and batches, `forms` and `merger` write the SQL.
"""

from binlake.changes.ordered.forms import OrderedStatement, RowForms
from binlake.changes.ordered.keys import ChangeKeys, ConflictKey
from binlake.changes.ordered.merger import Merger, OrderedChange
from binlake.changes.ordered.rounds import Detector, OrderedPlan, PlanOptions, Strategy, build_detector

__all__ = [
    "ChangeKeys",
    "ConflictKey",
    "Detector",
    "Merger",
    "OrderedChange",
    "OrderedPlan",
    "OrderedStatement",
    "PlanOptions",
    "RowForms",
    "Strategy",
    "build_detector",
]
