"""Decide which changes are replicated and under which names, per row and per DDL, before compaction (hazards R-14)."""

from binlake.rules.rules import Rules
from binlake.rules.tables import TableFilter

__all__ = ["Rules", "TableFilter"]
