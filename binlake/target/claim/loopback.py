"""Marks Binlake's transactions on the target, so that the reverse replication skips them (tidb-binlog 5.11, R-47)."""

from __future__ import annotations

from dataclasses import dataclass

from binlake.base import sql
from binlake.base.sections import LoopbackSection
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import require_transactions


@dataclass(frozen=True)
class LoopbackMarks:
    """The mark table of a channel; `info` names the writer for people (at most 64 characters)."""

    config: LoopbackSection
    info: str

    @classmethod
    def of(cls, config: LoopbackSection, replication: str) -> LoopbackMarks | None:
        """The marks of a replication; None without loopback control."""
        return cls(config, replication) if config.loopback_control else None

    def create_table(self, session: TargetSession) -> None:
        """Create the mark table if it is missing. Raises TargetRefused."""
        names = (self.config.mark_schema, self.config.mark_table)
        sought = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        if not session.fetch_rows(sought, names):
            session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(self.config.mark_schema)}")
            session.execute(sql.read_statement("repl_mark").replace("{table}", self._table))
        # A transaction that rolls back must leave no mark.
        require_transactions(session, self.config.mark_schema, [self.config.mark_table])

    def mark(self, session: TargetSession, worker: int = 0) -> None:
        """Mark the open transaction; each connection has its own row. Raises TargetRefused, TargetBusy."""
        session.write(
            f"INSERT INTO {self._table} (id, channel_id, val, channel_info) VALUES (%s, %s, 1, %s)"
            " ON DUPLICATE KEY UPDATE val = val + 1",
            (worker, self.config.channel_id, self.info[:64]),
        )

    @property
    def _table(self) -> str:
        return quote_qualified_name(self.config.mark_schema, self.config.mark_table)
