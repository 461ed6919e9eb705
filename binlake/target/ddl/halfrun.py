"""Continues a DDL that takes several ALTERs, at the first whose result the target lacks (hazards R-04).

Each of them commits by itself. So before the intent is written, an empty copy of the table is made next to the
checkpoint. A process that finds the intent runs the ALTERs on another such copy, one after the other, until it is
defined as the table is: these ran, and the others did not.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from binlake.dialect.conversions import RESTORES
from binlake.dialect.replacement import find_altered_table, put_table_name
from binlake.errors import TargetRefused
from binlake.statements.batch import StatementBatch
from binlake.statements.literal import quote_qualified_name
from binlake.statements.render import format_copy_prefix
from binlake.target.ddl.operatorproof import read_lines
from binlake.target.definitions.forms import Name
from binlake.target.session.session import TargetSession

log = structlog.get_logger()

_ALTER = "ALTER TABLE "
_SETTINGS = ("SET ", "USE ")
"""Statements of the session, which are needed whatever ran before."""


@dataclass(frozen=True)
class StepProof:
    """The proof for the ALTERs of `table` among `statements`. `copy`: the table as it was before; `trial`: where they
    are tried."""

    statements: tuple[str, ...]
    db: str
    table: Name
    copy: Name
    trial: Name

    @classmethod
    def of(cls, schema: str, replication: str, commit_ts: int, ddl: StatementBatch) -> StepProof | None:
        """The proof for `ddl`; None if it is no DDL of the source with several ALTERs of one table."""
        alters = [statement for statement in ddl.sql if statement.startswith(_ALTER)]
        if ddl.kind != "ddl" or len(alters) < 2:
            return None
        tables = {find_altered_table(statement, ddl.db) for statement in alters}
        table = tables.pop()
        if table is None or tables:
            return None
        # Tables with this prefix are dropped when the next window opens.
        prefix = format_copy_prefix(replication)
        return cls(ddl.sql, ddl.db, table, (schema, f"{prefix}was_{commit_ts}"), (schema, f"{prefix}try_{commit_ts}"))

    def make(self, session: TargetSession) -> None:
        """Make the copy, before the intent is written. Without it, a DDL that ended halfway is not continued."""
        self.remove(session)
        try:
            _copy_definition(session, self.table, self.copy)
        except TargetRefused as error:
            log.info("ddl_steps_not_provable", table=".".join(self.table), error=error.message)

    def find_missing(self, session: TargetSession) -> tuple[str, ...] | None:
        """The statements that are still to be run, none if all ALTERs ran; None if the target does not show it."""
        now = read_lines(session, self.table)
        if now is None or read_lines(session, self.copy) is None:
            return None
        try:
            session.execute(f"DROP TABLE IF EXISTS {quote_qualified_name(*self.trial)}")
            _copy_definition(session, self.copy, self.trial)
            done = self._count_done(session, now)
        except TargetRefused as error:
            log.info("ddl_steps_not_tried", table=".".join(self.table), error=error.message)
            return None
        finally:
            for statement in self.statements:
                if statement.startswith(RESTORES):
                    session.execute(statement)
        if done is None:
            return None
        before, after = self.statements[:done], self.statements[done:]
        if not any(statement.startswith(_ALTER) for statement in after):
            return ()
        return (*(statement for statement in before if statement.startswith(_SETTINGS)), *after)

    def remove(self, session: TargetSession) -> None:
        """Drop the copies once the DDL is known to be done. Raises TargetRefused."""
        for name in (self.copy, self.trial):
            session.execute(f"DROP TABLE IF EXISTS {quote_qualified_name(*name)}")

    def _count_done(self, session: TargetSession, now: list[str]) -> int | None:
        """How many statements, the first ones, make the trial's definition that of the table."""
        if read_lines(session, self.trial) == now:
            return 0
        for number, statement in enumerate(self.statements, 1):
            if statement.startswith(_SETTINGS):
                session.execute(statement)
            elif statement.startswith(_ALTER):
                session.execute(put_table_name(statement, self.db, self.table, self.trial))
                if read_lines(session, self.trial) == now:
                    return number
        return None


def _copy_definition(session: TargetSession, table: Name, copy: Name) -> None:
    session.execute(f"CREATE TABLE {quote_qualified_name(*copy)} LIKE {quote_qualified_name(*table)}")
