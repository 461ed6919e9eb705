"""Compares tables whose rows a DDL changed by itself, after the window that ran the DDL is applied."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from binlake.config import Replication
from binlake.errors import BinlakeError, Permanent
from binlake.lake.paths import LakePaths
from binlake.lake.targetevents import read_due_tables, record_compared
from binlake.lake.windowlog import WindowLog
from binlake.repair.differences import Difference
from binlake.repair.lakeside import list_tables_at, read_cluster_id
from binlake.repair.verify import Against, VerifyOptions, verify
from binlake.rows.schema.forms import fold_name
from binlake.target.claim.checkpoint import read_aside
from binlake.target.session.session import TargetSession

log = structlog.get_logger(__name__)

_SHOWN, _MOST = 5, 100
"""The number of differences that are reported, and the maximum that is searched for."""

State = Literal["equal", "different", "not-comparable"]


@dataclass(frozen=True)
class AfterDdl:
    """The result of comparing `table` (db.table at the target) after the DDL at `ddl_ts`; `why`: for people."""

    table: str
    ddl_ts: int
    state: State
    against: str = ""
    why: str = ""

    def to_dict(self) -> dict[str, str]:
        """For JSON."""
        return {**vars(self), "ddl_ts": str(self.ddl_ts)}


def compare_due_tables(replication: Replication, windows: WindowLog, hi: int, run_id: str) -> list[AfterDdl]:
    """Compare the due tables that can be compared at the checkpoint `hi`, and record the outcomes.

    A table that cannot be compared is reported without an error, since the window is done. It stays due if waiting may
    help.
    """
    target = replication.require_sql_target()
    waiting = read_due_tables(target, windows)
    wanted = {name: ts for name, ts in waiting.items() if ts <= hi}
    if not wanted:
        return []
    began = time.monotonic()
    outcomes = list(_Checker(replication, windows, hi).compare_all(wanted))
    if outcomes:
        left = {name: ts for name, ts in waiting.items() if name not in {outcome.table for outcome in outcomes}}
        states = {outcome.state for outcome in outcomes}
        state = next(state for state in ("different", "not-comparable", "equal") if state in states)
        tables = [outcome.to_dict() for outcome in outcomes]
        record_compared(target, windows, hi, state, left, tables, time.monotonic() - began, run_id)
    for outcome in outcomes:
        tell = log.info if outcome.state == "equal" else log.error if outcome.state == "different" else log.warning
        # Differing rows are not logged, because logs must not contain values.
        tell("verified_after_ddl", table=outcome.table, ddl_commit_ts=str(outcome.ddl_ts), state=outcome.state)
    return outcomes


class _Checker:
    def __init__(self, replication: Replication, windows: WindowLog, hi: int) -> None:
        self._replication, self._windows, self._hi = replication, windows, hi

    def compare_all(self, wanted: Mapping[str, int]) -> Iterator[AfterDdl]:
        """The outcomes that can be determined now."""
        try:
            tables = list_tables_at(self._replication, LakePaths.of(self._replication), self._hi)
            existing = {".".join(verified.name) for verified in tables}
            sizes, aside = self._read_sizes(wanted)
        except BinlakeError as error:
            log.warning("verify_after_ddl_postponed", error=str(error))
            return
        for name, ts in wanted.items():
            if name not in existing:
                yield AfterDdl(name, ts, "not-comparable", why="the table was dropped or renamed")
            elif fold_name(name) in aside:
                yield AfterDdl(name, ts, "not-comparable", why="it is set aside: `binlake table back` compares it")
            elif (outcome := self._compare_one(name, ts, sizes.get(fold_name(name), 0))) is not None:
                yield outcome

    def _read_sizes(self, wanted: Mapping[str, int]) -> tuple[dict[str, int], set[str]]:
        """The target's row estimate for each table, and the tables that are set aside."""
        target = self._replication.require_sql_target()
        with closing(TargetSession(target)) as session:
            aside = read_aside(session, target.checkpoint_schema, read_cluster_id(self._windows))
            places = ", ".join(["%s"] * len(wanted))
            rows = session.fetch_rows(
                "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS FROM information_schema.TABLES"
                f" WHERE CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) IN ({places})",
                list(wanted),
            )
        sizes = {fold_name(f"{db}.{table}"): int(count or 0) for db, table, count in rows}
        return sizes, {".".join(name) for name in aside}

    def _compare_one(self, name: str, ts: int, rows: int) -> AfterDdl | None:
        """The outcome for one table; None: it cannot be compared yet."""
        most = self._replication.require_sql_target().verify_after_ddl_rows
        if rows > most:
            why = f"about {rows} rows, more than target.verify-after-ddl-rows = {most}: `binlake verify --table {name}`"
            return AfterDdl(name, ts, "not-comparable", why=why)
        why = "the lake keeps no mirrors"
        if self._replication.mirror.enabled:
            if (self._windows.find_greatest_hi("mirror") or 0) < ts:
                return None
            outcome = self._compare_against(name, ts, "lake")
            if outcome is None or outcome.state != "not-comparable":
                return outcome
            why = outcome.why
        if self._replication.source.sql is None:
            return AfterDdl(name, ts, "not-comparable", why=why)
        outcome = self._compare_against(name, ts, "source")
        return (
            replace(outcome, why=f"{why}; {outcome.why}") if outcome and outcome.state == "not-comparable" else outcome
        )

    def _compare_against(self, name: str, ts: int, against: Against) -> AfterDdl | None:
        try:
            options = VerifyOptions(against=against, tables=(name,), max_differences=_MOST, lock_wait_s=0)
            result = verify(self._replication, options)
        except Permanent as error:
            return AfterDdl(name, ts, "not-comparable", against, str(error))
        except BinlakeError as error:
            log.warning("verify_after_ddl_postponed", table=name, error=str(error))
            return None
        except Exception as error:
            # The window is done, so a failed comparison is reported and does not fail the run.
            log.exception("verify_after_ddl_failed", table=name)
            return AfterDdl(name, ts, "not-comparable", against, f"{type(error).__name__}: {error}")
        if not result.whole:
            return AfterDdl(name, ts, "not-comparable", against, result.tables[0].inexact)
        if result.equal:
            return AfterDdl(name, ts, "equal", against)
        lines = [*result.tables[0].structure, *map(_describe_difference, result.differences)]
        return AfterDdl(name, ts, "different", against, "; ".join(lines[:_SHOWN]))


def _describe_difference(difference: Difference) -> str:
    """The difference as text, with no values of the row except the key's."""
    return f"{difference.kind} {difference.key} {', '.join(difference.columns)}".rstrip()
