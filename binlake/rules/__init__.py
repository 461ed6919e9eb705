"""Which changes are replicated and under which names; judged per row and per DDL before compaction (hazards R-14)."""

from binlake.filter.rules import Rules
from binlake.filter.tables import TableFilter

__all__ = ["Rules", "TableFilter"]
