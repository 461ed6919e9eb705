"""Two replications in opposite directions (tidb-binlog 5.11): a mark shows which transactions this pair wrote.

Such a transaction is left out completely, before compaction (hazards R-47); the mark table is never replicated.
"""

from __future__ import annotations

from binlake.base.sections.rules import Loopback
from binlake.rows.codec.transaction import TableLookup, decode_raw_changes
from binlake.rows.schema import TableDef


class MarkReader:
    """Recognizes the transactions that this pair of replications wrote."""

    def __init__(self, config: Loopback) -> None:
        self._name = config.mark_schema.lower(), config.mark_table.lower()
        self._channel = str(config.channel_id)

    def is_mark(self, db: str, table: str) -> bool:
        """True for the mark table, and for its database if `table` is empty."""
        return (db.lower(), table.lower() or self._name[1]) == self._name

    def is_ours(self, payload: bytes, commit_ts: int, start_ts: int, tables: TableLookup) -> bool:
        """True if the transaction changed the mark row of this channel. Raises WireError, SchemaError."""
        _, changes = decode_raw_changes(payload, commit_ts, start_ts, tables, wanted=self._mark_columns)
        for _, _, _, before, after in changes:
            names, values = after or before or ((), [])
            channels = [value for name, value in zip(names, values, strict=True) if name.lower() == "channel_id"]
            if channels == [self._channel]:
                return True
        return False

    def _mark_columns(self, table: TableDef) -> tuple[str, ...]:
        return ("insert", "update", "delete") if self.is_mark(table.db, table.name) else ()
