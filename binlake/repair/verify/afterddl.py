"""Compares the tables whose rows a DDL changed by itself, once the window that ran it is downstream.

What is due is in the lake before the DDL runs, and stays due until the mirrors have come as far, so nothing is
forgotten by a run that dies. The outcome is reported and nothing is repaired: which side is right after a conversion a
person decides. Windows without such a DDL pay one read of the newest events.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog

from binlake.config import Replication
from binlake.config.model import Target
from binlake.errors import BinlakeError, Permanent
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.repair.verify.differences import Difference
from binlake.repair.verify.run import Against, VerifyOptions, verify
from binlake.repair.verify.tables import cluster_of, tables_at
from binlake.rows.schema.names import fold_name
from binlake.target.claim.aside import read_aside
from binlake.target.session.session import Session
from binlake.window.definitions import LandedDdl
from binlake.window.rewrites import STAGE, tables_rewritten_by

log = structlog.get_logger(__name__)

_SHOWN, _MOST = 5, 100
"""Differences that are reported, and those that are searched for."""
_EVENTS = 20
"""Newest events that are looked through for the target's own."""

State = Literal["equal", "different", "not-comparable"]


@dataclass(frozen=True)
class Outcome:
    """How `table` (db.table at the target) compared behind the DDL at `ddl_ts`; `why` for people."""

    table: str
    ddl_ts: int
    state: State
    against: str = ""
    why: str = ""

    def to_dict(self) -> dict[str, str]:
        """For JSON."""
        return {**vars(self), "ddl_ts": str(self.ddl_ts)}


def record_due_tables(
    target: Target, windows: WindowLog, ddls: Iterable[LandedDdl], hi: int, run_id: str, is_passed: Callable[[], bool]
) -> None:
    """Record, before they run, the tables that `ddls` of the window up to `hi` will have changed.

    `is_passed`: whether they ran long ago; asked only where there are such tables.
    """
    new = {".".join(name): ts for name, ts in tables_rewritten_by(ddls).items()} if target.verify_after_ddl_rows else {}
    if not new or is_passed():
        return
    known = read_due_tables(target, windows)
    if known | new != known:
        _record(target, windows, hi, "due", known | new, [], 0.0, run_id)


def read_due_tables(target: Target, windows: WindowLog) -> dict[str, int]:
    """The commit_ts of the DDL by table of `target` that is to be compared (a replay has another target)."""
    details = (json.loads(event["detail"]) for event in windows.last_events((STAGE,), _EVENTS))
    last: dict[str, str] = next(
        (detail["due"] for detail in details if detail["target"] == _target_address(target)), {}
    )
    return {name: int(ts) for name, ts in last.items()}


def compare_due_tables(replication: Replication, windows: WindowLog, hi: int, run_id: str) -> list[Outcome]:
    """Compare what is due and can be compared now, at the checkpoint `hi`; what was found is recorded.

    What cannot be compared raises nothing, since the window is done: it is reported. What waiting may help stays due.
    """
    target = replication.sql_target()
    waiting = read_due_tables(target, windows)
    wanted = {name: ts for name, ts in waiting.items() if ts <= hi}
    if not wanted:
        return []
    began = time.monotonic()
    found = list(_Checker(replication, windows, hi).all(wanted))
    if found:
        left = {name: ts for name, ts in waiting.items() if name not in {one.table for one in found}}
        states = {one.state for one in found}
        state = next(state for state in ("different", "not-comparable", "equal") if state in states)
        _record(target, windows, hi, state, left, found, time.monotonic() - began, run_id)
    for one in found:
        tell = log.info if one.state == "equal" else log.error if one.state == "different" else log.warning
        # Not which rows: logs hold no values.
        tell("verified_after_ddl", table=one.table, ddl_commit_ts=str(one.ddl_ts), state=one.state)
    return found


class _Checker:
    def __init__(self, replication: Replication, windows: WindowLog, hi: int) -> None:
        self._replication, self._windows, self._hi = replication, windows, hi

    def all(self, wanted: Mapping[str, int]) -> Iterator[Outcome]:
        """What can be said by now."""
        try:
            tables = tables_at(self._replication, LakePaths.of(self._replication), self._hi)
            there = {".".join(one.name) for one in tables}
            sizes, aside = self._sizes(wanted)
        except BinlakeError as error:
            log.warning("verify_after_ddl_postponed", error=str(error))
            return
        for name, ts in wanted.items():
            if name not in there:
                yield Outcome(name, ts, "not-comparable", why="the table is gone, or has another name")
            elif fold_name(name) in aside:
                yield Outcome(name, ts, "not-comparable", why="it is set aside: `binlake table back` compares it")
            elif (found := self._one(name, ts, sizes.get(fold_name(name), 0))) is not None:
                yield found

    def _sizes(self, wanted: Mapping[str, int]) -> tuple[dict[str, int], set[str]]:
        """Rows of each table as the target estimates them, and the tables that are set aside."""
        target = self._replication.sql_target()
        with closing(Session(target)) as session:
            aside = read_aside(session, target.checkpoint_schema, cluster_of(self._windows))
            rows = session.rows("SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS FROM information_schema.TABLES"
                                f" WHERE CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) IN ({', '.join(['%s'] * len(wanted))})",
                                list(wanted))  # fmt: skip
        sizes = {fold_name(f"{db}.{table}"): int(count or 0) for db, table, count in rows}
        return sizes, {".".join(name) for name in aside}

    def _one(self, name: str, ts: int, rows: int) -> Outcome | None:
        """None: not yet."""
        most = self._replication.sql_target().verify_after_ddl_rows
        if rows > most:
            why = f"about {rows} rows, more than target.verify-after-ddl-rows = {most}: `binlake verify --table {name}`"
            return Outcome(name, ts, "not-comparable", why=why)
        why = "the lake keeps no mirrors"
        if self._replication.mirror.enabled:
            if (self._windows.greatest_hi("mirror") or 0) < ts:
                return None
            found = self._compared(name, ts, "lake")
            if found is None or found.state != "not-comparable":
                return found
            why = found.why
        if self._replication.source.sql is None:
            return Outcome(name, ts, "not-comparable", why=why)
        found = self._compared(name, ts, "source")
        return replace(found, why=f"{why}; {found.why}") if found and found.state == "not-comparable" else found

    def _compared(self, name: str, ts: int, against: Against) -> Outcome | None:
        try:
            options = VerifyOptions(against=against, tables=(name,), max_differences=_MOST, lock_wait_s=0)
            result = verify(self._replication, options)
        except Permanent as error:
            return Outcome(name, ts, "not-comparable", against, str(error))
        except BinlakeError as error:
            log.warning("verify_after_ddl_postponed", table=name, error=str(error))
            return None
        except Exception as error:
            # The window is done: a comparison that fails is reported, and does not fail the run.
            log.exception("verify_after_ddl_failed", table=name)
            return Outcome(name, ts, "not-comparable", against, f"{type(error).__name__}: {error}")
        if not result.whole:
            return Outcome(name, ts, "not-comparable", against, result.tables[0].inexact)
        if result.equal:
            return Outcome(name, ts, "equal", against)
        lines = [*result.tables[0].structure, *map(_describe_difference, result.differences)]
        return Outcome(name, ts, "different", against, "; ".join(lines[:_SHOWN]))


def _describe_difference(one: Difference) -> str:
    """Without values but those of the key."""
    return f"{one.kind} {one.key} {', '.join(one.columns)}".rstrip()


def _target_address(target: Target) -> str:
    return f"{target.host}:{target.port}/{target.checkpoint_schema}"


def _record(
    target: Target,
    windows: WindowLog,
    hi: int,
    state: str,
    left: Mapping[str, int],
    found: list[Outcome],
    seconds: float,
    run_id: str,
) -> None:
    detail: dict[str, Any] = {"due": {name: str(ts) for name, ts in left.items()}, "target": _target_address(target)}
    detail |= {"tables": [one.to_dict() for one in found]} if found else {}
    windows.record(WindowEvent(STAGE, hi, hi, state, 0, seconds, run_id, "sql", detail=detail))
