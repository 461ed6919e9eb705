"""Proves what of a begun DDL has run, only by changes that nothing but the DDL can make (hazards R-04).

A failover, a logical restore or OPTIMIZE gives tables new numbers, and another server may print their definitions
differently: neither proves a DDL. Proofs are: a marker that a RENAME list moves together with its tables, since servers
run such a list as a whole; the structure, if the DDL changes it; definitions and numbers as long as the same server
shows them; and numbers alone if rows move without a change of definition. Without such a proof the verdict is
`unknown`.

The result of an operator's statement is unknown. So before the intent is written, the statement is tried on an empty
copy of its table, next to the checkpoint. A process that finds the intent compares the table with that copy. If the
statement cannot be tried or changes nothing visible, a changed definition proves nothing: somebody else may have
changed it.

A DDL that takes several ALTERs commits each of them by itself. So before the intent is written, an empty copy of the
table is made next to the checkpoint. A process that finds the intent runs the ALTERs on another such copy, one after
the other, until it is defined as the table is: these ran, and the others did not.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import structlog

from binlake.config.servers import TargetSection
from binlake.dialect.conversions import RESTORES
from binlake.dialect.replacement import find_altered_table, makes_or_drops_table, put_table_name
from binlake.dialect.tokens import tokenize
from binlake.errors import TargetRefused
from binlake.statements.batch import INJECTED, REPLACED, StatementBatch
from binlake.statements.literal import quote_qualified_name
from binlake.statements.render import format_copy_prefix
from binlake.target.definitions.definitions import (
    ExpectedState,
    compare_definitions,
    digest_definitions,
    find_remaining_rows,
    read_create_statement,
    read_definitions,
    read_table_numbers,
)
from binlake.target.definitions.forms import Name
from binlake.target.session.session import TargetSession

Verdict = Literal["before", "after", "unknown"]
"""The state of a DDL that was begun: it had no effect, it is complete, or this is unknown."""

_RENAME_LIST = re.compile(r"\s*RENAME\s+TABLES?\s", re.IGNORECASE)
_OURS = ("binlake_fence", "binlake_ledger", "binlake_progress")
log = structlog.get_logger()
_FOREIGN_KEY = " FOREIGN KEY ("
_NAME_OF_CHECK = re.compile(r"CONSTRAINT `(?:[^`]|``)+` CHECK")
_ALTER = "ALTER TABLE "
_SETTINGS = ("SET ", "USE ")
"""Statements of the session, which are needed whatever ran before."""


@dataclass(frozen=True)
class Evidence:
    """The state of the tables that a DDL touches, as the target showed it at one time.

    `structure`, `texts`: digests of columns and keys, and of SHOW CREATE. `numbers`: the storage engine's number of
    each table and partition, None if they cannot be read. `server`: constant as long as the same server with the same
    data folder answers. `shows`: the target does not have the DDL's result yet, so the structure or the absence of rows
    will show that it ran.
    """

    structure: str
    texts: str
    numbers: dict[str, str] | None
    server: str
    shows: bool

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def read_evidence(
    session: TargetSession, target: TargetSection, touched: Iterable[Name], after: ExpectedState | None
) -> Evidence:
    """What the target shows now. `after`: the DDL's result, None if unknown. Raises TargetRefused."""
    names = sorted(set(touched))
    return Evidence(
        structure=_digest_structure(session, target, names),
        texts=digest_definitions(session, names),
        numbers=read_table_numbers(session, names, target.db_type),
        server=_identify_server(session, target),
        shows=bool(list_differences(session, target, after)),
    )


def list_differences(session: TargetSession, target: TargetSection, after: ExpectedState | None) -> list[str]:
    """What the target lacks of `after`, for people; empty if the DDL's result is unknown."""
    if after is None:
        return []
    differences = compare_definitions(
        after, read_definitions(session, after.names, target.db_type), indexes=True, target=target
    )
    return [*differences, *find_remaining_rows(session, after.empty)]


def judge(before: Evidence, now: Evidence, after: ExpectedState | None) -> Verdict:
    """Whether the DDL with result `after` ran between `before` and `now`."""
    if after is not None and after.is_in_rows_alone:
        # Definitions do not show where rows are. If they change, it is for another reason.
        return _judge_numbers(before, now)
    if before.shows:
        if not now.shows:
            return "after"
        return "before" if now.structure == before.structure else "unknown"
    if now.server == before.server and now.texts != before.texts:
        return "after"
    return _judge_numbers(before, now)


def _judge_numbers(before: Evidence, now: Evidence) -> Verdict:
    """Judge by the engine's numbers: newly created tables have numbers that were never used before."""
    if now.server != before.server or now.numbers is None or before.numbers is None:
        return "unknown"
    if now.numbers == before.numbers:
        return "before"
    swapped = before.numbers.keys() == now.numbers.keys() and sorted(before.numbers.values()) == sorted(
        now.numbers.values()
    )
    removed = now.numbers.items() < before.numbers.items()
    return "after" if swapped or removed else "unknown"


def _digest_structure(session: TargetSession, target: TargetSection, names: list[Name]) -> str:
    actual = read_definitions(session, names, target.db_type)
    engines = "".join(form.engine for _, form in sorted(actual.tables.items()) if form is not None)
    return hashlib.sha256((ExpectedState(actual.databases, actual.tables).to_json() + engines).encode()).hexdigest()


def _identify_server(session: TargetSession, target: TargetSection) -> str:
    """A digest of the server and Binlake's tables there: a restored or replicated copy gives another digest."""
    place = session.fetch_rows("SELECT @@version, @@hostname, @@port, @@datadir")
    made = session.fetch_rows(
        "SELECT TABLE_NAME, CREATE_TIME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN"
        " (%s, %s, %s) ORDER BY TABLE_NAME",
        (target.checkpoint_schema, *_OURS),
    )
    numbers = read_table_numbers(session, [(target.checkpoint_schema, name) for name in _OURS], target.db_type)
    return hashlib.sha256(json.dumps([place, made, numbers], default=str).encode()).hexdigest()


@dataclass(frozen=True)
class RenameMarker:
    """An empty Binlake table for one RENAME list, which renames it from `begun` to `ended` (quoted names)."""

    schema: str
    begun_name: str
    ended_name: str

    @classmethod
    def of(cls, schema: str, replication: str, commit_ts: int, sql: str) -> RenameMarker | None:
        """The marker for `sql`; None if it is not a RENAME list."""
        if _RENAME_LIST.match(sql) is None:
            return None
        # Tables with this prefix are dropped when the next window opens.
        prefix = format_copy_prefix(replication)
        return cls(schema, f"{prefix}rename_{commit_ts}", f"{prefix}renamed_{commit_ts}")

    @property
    def begun(self) -> str:
        """The marker's name before the list ran."""
        return quote_qualified_name(self.schema, self.begun_name)

    @property
    def ended(self) -> str:
        """The marker's name after the list ran."""
        return quote_qualified_name(self.schema, self.ended_name)

    def make(self, session: TargetSession) -> None:
        """Create the marker under its first name, before the intent is written. Raises TargetRefused."""
        session.execute(f"DROP TABLE IF EXISTS {self.ended}")
        session.execute(f"CREATE TABLE IF NOT EXISTS {self.begun} (id INT PRIMARY KEY) ENGINE=InnoDB")

    def add_to_list(self, sql: str) -> str:
        """`sql` extended to rename the marker too, on a new line, since the text may end with a comment."""
        return f"{sql.rstrip().rstrip(';')}\n, {self.begun} TO {self.ended}"

    def reach_verdict(self, session: TargetSession) -> Verdict:
        """Judge by which of the two names exists."""
        names = session.fetch_column(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN (%s, %s)",
            (self.schema, self.begun_name, self.ended_name),
        )
        if names == [self.begun_name]:
            return "before"
        return "after" if names == [self.ended_name] else "unknown"

    def remove(self, session: TargetSession) -> None:
        """Drop the marker once the DDL is known to be done. Raises TargetRefused."""
        session.execute(f"DROP TABLE IF EXISTS {self.begun}, {self.ended}")


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
