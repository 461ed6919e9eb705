"""Finds one transaction in the lake: its row changes in order, its DDL, and the runs of stages that processed it."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from binlake import tso
from binlake.common.lakecolumns import Binlog
from binlake.ddl.definitions import LandedDdl
from binlake.errors import OutOfTime
from binlake.lake import skipped
from binlake.lake.damage import name_damage
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.mutations import RowVersion, commit_day
from binlake.lake.opentable import KnownTable, open_dataset, open_once
from binlake.lake.paths import LakePaths
from binlake.lake.seek import TimeBudget, read_changes_of_transaction
from binlake.lake.tables import BINLOG
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import ENDED, name_task
from binlake.window.events import EventRow
from binlake.window.manifest import format_window_name

_HEAD = (Binlog.COMMIT_TS, Binlog.START_TS, Binlog.KIND, Binlog.SCHEMA_VERSION, Binlog.PUMP)


@dataclass(frozen=True)
class Passage:
    """A run of a stage that processed the window (lo, hi]. `sink` as in the table `window`; `at_ms`: Unix ms."""

    stage: str
    sink: str
    lo: int
    hi: int
    run_id: str
    at_ms: int

    def to_dict(self) -> dict[str, str]:
        """For `--output json`."""
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        window = format_window_name(self.lo, self.hi)
        return {"stage": self.stage, "task": self.task, "sink": self.sink, "window": window, "run_id": self.run_id,
                "at": at}  # fmt: skip

    @property
    def task(self) -> str:
        """The name of the stage's task; each feed has its own task."""
        return name_task(self.stage, self.sink)


class Passages:
    """Finds the runs that processed a commit_ts, from the events of their windows."""

    def __init__(self, events: Iterable[EventRow]) -> None:
        self._windows: dict[str, list[Passage]] = {}
        for event in events:
            if event["state"] in ENDED and event["hi"] > event["lo"]:
                passage = Passage(
                    event["stage"], event["sink"], event["lo"], event["hi"], event["run_id"], event["at_ms"]
                )
                self._windows.setdefault(passage.task, []).append(passage)
        for passages in self._windows.values():
            passages.sort(key=lambda passage: passage.hi)

    def find_at(self, commit_ts: int) -> list[Passage]:
        """The first passage of each stage that processed `commit_ts`, in order of time."""
        passages_of_stages = (_find_covering(passages, commit_ts) for passages in self._windows.values())
        return sorted(
            (passage for passage in passages_of_stages if passage is not None), key=lambda passage: passage.at_ms
        )


def _find_covering(passages: Sequence[Passage], commit_ts: int) -> Passage | None:
    start = bisect.bisect_left(passages, commit_ts, key=lambda passage: passage.hi)
    candidates = itertools.takewhile(lambda passage: passage.lo < commit_ts, passages[start:])
    # A rerun derives the same rows again, so return the first run.
    return min(candidates, key=lambda passage: passage.at_ms, default=None)


@dataclass(frozen=True)
class LandedTransaction:
    """A landed transaction or DDL (`kind` dml or ddl), pulled from `pumps`. `bytes`: size of its binlog.

    `changes`: the requested ones of `total`.
    """

    commit_ts: int
    start_ts: int
    kind: str
    schema_version: int
    pumps: tuple[str, ...]
    bytes: int
    changes: tuple[RowVersion, ...]
    ddls: tuple[LandedDdl, ...]
    passages: tuple[Passage, ...]
    total: int

    @property
    def remark(self) -> str:
        """Why the transaction has no changes, if it has none."""
        if self.total or self.ddls:
            return ""
        stages = {passage.stage for passage in self.passages}
        if skipped.SKIP in stages:
            return f"left out by {skipped.RULE}"
        return (
            "the filters drop all of its row changes"
            if "merge" in stages
            else "its window is landed but not merged yet"
        )

    def to_dict(self) -> dict[str, Any]:
        """For `--output json`: timestamps as strings."""
        return {
            "commit_ts": str(self.commit_ts),
            "start_ts": str(self.start_ts),
            "commit_time": tso.to_datetime(self.commit_ts).isoformat(timespec="milliseconds"),
            "kind": self.kind,
            "schema_version": self.schema_version,
            "pumps": list(self.pumps),
            "bytes": self.bytes,
            "changes": [change.to_dict() for change in self.changes],
            "ddl": [{"sql": ddl.sql, "query": ddl.query, "decision": ddl.decision, "reason": ddl.reason,
                     "job_id": ddl.job_id} for ddl in self.ddls],
            "passages": [passage.to_dict() for passage in self.passages],
            "remark": self.remark,
        }  # fmt: skip


def find_transaction(
    paths: LakePaths,
    log: WindowLog,
    ts: int,
    landed: tuple[int, int],
    first: int = 0,
    count: int | None = None,
    budget: TimeBudget | None = None,
) -> LandedTransaction | None:
    """The transaction with commit_ts or start_ts `ts` among those in the landed range `landed` = (lo, hi].

    It has `count` changes (None: all), starting at index `first`. Raises OutOfTime when `budget` runs out.
    """
    parts = _read_binlogs(paths, ts, landed, budget)
    if not parts:
        return None
    head = parts[0]
    commit_ts, start_ts = int(head[Binlog.COMMIT_TS]), int(head[Binlog.START_TS])
    passages = Passages(log.read_events_at([commit_ts]))
    merged = any(passage.stage == "merge" for passage in passages.find_at(commit_ts))
    changes, total = read_changes_of_transaction(paths, commit_ts, start_ts, first, count) if merged else ([], 0)
    return LandedTransaction(
        commit_ts,
        start_ts,
        str(head[Binlog.KIND]),
        int(head[Binlog.SCHEMA_VERSION]),
        tuple(sorted({str(part[Binlog.PUMP]) for part in parts})),
        sum(int(part["bytes"]) for part in parts),
        tuple(changes),
        tuple(read_landed_ddls(paths, commit_ts - 1, commit_ts)) if head[Binlog.KIND] == "ddl" else (),
        tuple(passages.find_at(commit_ts)),
        total,
    )


def _read_binlogs(
    paths: LakePaths, ts: int, landed: tuple[int, int], budget: TimeBudget | None
) -> list[Mapping[str, Any]]:
    with name_damage(paths.locate_table(BINLOG.name)):
        return _find_binlogs(paths, ts, landed, budget)


def _find_binlogs(
    paths: LakePaths, ts: int, landed: tuple[int, int], budget: TimeBudget | None
) -> list[Mapping[str, Any]]:
    table = open_once(paths.locate_table(BINLOG.name))
    data = open_dataset(table)
    within = (ds.field(Binlog.COMMIT_TS) > landed[0]) & (ds.field(Binlog.COMMIT_TS) <= landed[1])
    # In a damaged lake, ts may be one transaction's commit_ts and another's start_ts: the commit_ts has precedence.
    rows = _read_identities(data, data.get_fragments(filter=_match_commit_ts(ts)), _match_commit_ts(ts) & within)
    if not rows:
        # A commit never precedes its start and usually follows soon: search upwards from the start.
        started = (ds.field(Binlog.COMMIT_DATE) >= commit_day(ts)) & (ds.field(Binlog.START_TS) == ts) & within
        for number, file in enumerate(_sort_by_age(table, data, started)):
            if number and budget is not None and budget.spent:
                hint = "search by its commit_ts, or use `binlake audit transaction`, which has no time limit"
                raise OutOfTime(
                    "the search took too long and found no transaction with this start_ts", where={"ts": ts}, hint=hint
                )
            rows = _read_identities(data, [file], started)
            if rows:
                break
    if not rows:
        return []
    first = rows[0]
    condition = _match_commit_ts(first[Binlog.COMMIT_TS]) & (ds.field(Binlog.START_TS) == first[Binlog.START_TS])
    columns = {name: ds.field(name) for name in _HEAD}
    # Only the payload's length is returned, read from row groups that have the transaction.
    columns["bytes"] = pc.binary_length(ds.field(Binlog.PAYLOAD))
    parts: list[Mapping[str, Any]] = data.to_table(columns=columns, filter=condition).to_pylist()
    return parts


def _match_commit_ts(commit_ts: int) -> ds.Expression:
    return (ds.field(Binlog.COMMIT_DATE) == commit_day(commit_ts)) & (ds.field(Binlog.COMMIT_TS) == commit_ts)


def _read_identities(data: ds.Dataset, files: Iterable[ds.Fragment], where: ds.Expression) -> list[Mapping[str, Any]]:
    """The identifying columns of matching rows in `files`, without payloads."""
    rows: list[Mapping[str, Any]] = []
    for file in files:
        rows += file.to_table(data.schema, columns=[Binlog.COMMIT_TS, Binlog.START_TS], filter=where).to_pylist()
    return rows


def _sort_by_age(table: KnownTable, data: ds.Dataset, where: ds.Expression) -> list[ds.Fragment]:
    """The files that may have matches, sorted by their lowest commit_ts."""
    adds = pa.table(table.get_add_actions(flatten=True))
    least = (
        dict(zip(adds["path"].to_pylist(), adds[f"min.{Binlog.COMMIT_TS}"].to_pylist(), strict=True))
        if adds.num_rows
        else {}
    )
    return sorted(data.get_fragments(filter=where), key=lambda file: least.get(file.path) or 0)
