"""Which tables are replicated; judged per row change and per DDL before anything is compacted (hazards R-14)."""

from binlake.filter.tables import TableFilter

__all__ = ["TableFilter"]
