"""Proves whether an operator's statement ran: the target must have its result, not just a changed definition (R-04).

The result of such a statement is unknown. So before the intent is written, the statement is tried on an empty copy of
its table, next to the checkpoint. A process that finds the intent compares the table with that copy. If the statement
cannot be tried or changes nothing visible, a changed definition proves nothing: somebody else may have changed it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import structlog

from binlake.dialect.replacement import find_altered_table, makes_or_drops_table, put_table_name
from binlake.dialect.tokens import tokenize
from binlake.errors import TargetRefused
from binlake.statements.batch import INJECTED, REPLACED, StatementBatch
from binlake.statements.literal import quote_qualified_name
from binlake.statements.render import format_copy_prefix
from binlake.target.ddl.proof import Evidence, Verdict, judge
from binlake.target.definitions.definitions import read_create_statement
from binlake.target.definitions.forms import Name
from binlake.target.session.session import TargetSession

log = structlog.get_logger()

_FOREIGN_KEY = " FOREIGN KEY ("
_NAME_OF_CHECK = re.compile(r"CONSTRAINT `(?:[^`]|``)+` CHECK")


@dataclass(frozen=True)
class OperatorProof:
    """The proof for `sql`: by `copy` if the statement alters `table` in place, else by the definitions."""

    sql: str
    db: str
    table: Name | None
    copy: Name

    @classmethod
    def of(cls, schema: str, replication: str, commit_ts: int, ddl: StatementBatch) -> OperatorProof | None:
        """The proof for `ddl`; None if it is not an operator's statement."""
        if ddl.kind not in (REPLACED, INJECTED):
            return None
        used = [statement.removeprefix("USE ") for statement in ddl.sql[:-1] if statement.startswith("USE ")]
        db = tokenize(used[-1])[0].value if used else ddl.db
        # Tables with this prefix are dropped when the next window opens.
        copy = (schema, f"{format_copy_prefix(replication)}own_{commit_ts}")
        return cls(ddl.sql[-1], db, find_altered_table(ddl.sql[-1], db), copy)

    def make(self, session: TargetSession) -> None:
        """Try the statement on a copy, before the intent is written. Without a visible result no copy is left."""
        self.remove(session)
        if self.table is None:
            return
        try:
            session.execute(f"CREATE TABLE {quote_qualified_name(*self.copy)} LIKE {quote_qualified_name(*self.table)}")
            session.execute(put_table_name(self.sql, self.db, self.table, self.copy))
        except TargetRefused as error:
            log.info("own_statement_not_tried", table=".".join(self.table), error=error.message)
            self.remove(session)
            return
        if read_lines(session, self.copy) == read_lines(session, self.table):
            self.remove(session)

    def reach_verdict(self, session: TargetSession, before: Evidence, now: Evidence) -> Verdict:
        """Whether the statement ran between `before` and `now`."""
        if self.table is not None:
            left = read_lines(session, self.copy)
            if left is not None and left == read_lines(session, self.table):
                return "after"
            if left is not None and now.server == before.server and now.texts == before.texts:
                return "before"
        verdict = judge(before, now, None)
        return "unknown" if verdict == "after" and not self._shows(before, now) else verdict

    def remove(self, session: TargetSession) -> None:
        """Drop the copy once the statement is known to be done or needs no proof. Raises TargetRefused."""
        session.execute(f"DROP TABLE IF EXISTS {quote_qualified_name(*self.copy)}")

    def _shows(self, before: Evidence, now: Evidence) -> bool:
        """Whether a new definition proves this statement; not for a change in place, which may be another one."""
        if self.table is not None:
            return False
        if not makes_or_drops_table(self.sql) or before.numbers is None or now.numbers is None:
            return True
        return before.numbers.keys() != now.numbers.keys()


def read_lines(session: TargetSession, name: Name) -> list[str] | None:
    """The lines of a table's definition without what a copy does not have: its name, foreign keys, names of checks.

    None if it is missing. Raises TargetRefused.
    """
    text = read_create_statement(session, name)
    lines = (text or "").splitlines()[1:]
    kept = [line.rstrip(",") for line in lines if _FOREIGN_KEY not in line]
    return None if text is None else [_NAME_OF_CHECK.sub("CHECK", line) for line in kept]
