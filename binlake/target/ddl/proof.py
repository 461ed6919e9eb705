"""Proves whether a DDL that was begun has run, only by changes that nothing but the DDL can make (hazards R-04).

A failover, a logical restore or OPTIMIZE gives tables new numbers, and another server may print their definitions
differently: neither proves a DDL. Proofs are: a marker that a RENAME list moves together with its tables, since servers
run such a list as a whole; the structure, if the DDL changes it; definitions and numbers as long as the same server
shows them; and numbers alone if rows move without a change of definition. Without such a proof the verdict is
`unknown`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from binlake.config.servers import TargetSection
from binlake.statements.literal import quote_qualified_name
from binlake.statements.preserve import format_copy_prefix
from binlake.target.definitions.definitions import (
    ExpectedState,
    compare_definitions,
    digest_definitions,
    read_definitions,
    read_table_numbers,
)
from binlake.target.definitions.forms import Name
from binlake.target.definitions.remainingrows import find_remaining_rows
from binlake.target.session.session import TargetSession

Verdict = Literal["before", "after", "unknown"]
"""The state of a DDL that was begun: it had no effect, it is complete, or this is unknown."""

_RENAME_LIST = re.compile(r"\s*RENAME\s+TABLES?\s", re.IGNORECASE)


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


_OURS = ("binlake_fence", "binlake_ledger", "binlake_progress")


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
