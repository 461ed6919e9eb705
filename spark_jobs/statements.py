"""The table `statement` as both its writer and its reader see it: one digest, one order of columns, one stream.

finalize executes what is here and nothing else, so whatever it reads is checked against the digests first (R-62).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from binlake.config.model import Target
from binlake.downstream import SegmentPlan, expected_after, expected_of
from binlake.errors import ImmutableWindow
from binlake.lake.dataset import dataset
from binlake.lake.paths import LakePaths
from binlake.schema import Action
from binlake.statement import Phase, StatementBatch, statement_digest
from spark_jobs.sinks import SinkWindow

INDEX = ("segment", "phase", "batch", "db", "table", "rows", "digest")
_BATCH = ("segment", "phase", "batch", "db", "table", "kind", "sql", "expect", "verify_sql", "verify_rows", "rows",
          "digest")  # fmt: skip
_READ_AHEAD = 8
"""Batches read at a time: each may be some MiB of text."""

# What these did cannot be told from running them again: they swap or move whole tables.
_NOT_REPEATABLE = frozenset({Action.RENAME_TABLE, Action.RENAME_TABLES, Action.EXCHANGE_PARTITION})


def batch_row(window: str, batch: StatementBatch) -> dict[str, object]:
    """A row of `statement`."""
    return {"window": window, **asdict(batch), "phase": int(batch.phase)}


class LakeStatements:
    """The statements of one window (a StatementSource), read from one Delta version through delta-rs."""

    def __init__(self, paths: LakePaths, window: SinkWindow, target: Target, schema_versions: tuple[int, int]) -> None:
        self._window = window
        self._target = target
        self._versions = schema_versions
        self._data = dataset(DeltaTable(paths.table("statement")))
        self._own = ds.field("window") == window.bounds.window
        self._index = self._data.to_table(columns=list(INDEX), filter=self._own).to_pylist()

    def digest(self) -> str:
        """SHA-256 over the place, row count and digest of every batch, in order."""
        return index_digest(self._index)

    @property
    def rows(self) -> int:
        """Row changes in all batches."""
        return sum(row["rows"] for row in self._index)

    @property
    def count(self) -> int:
        """Batches and DDL."""
        return len(self._index)

    def segments(self) -> list[SegmentPlan]:
        """All segments in order."""
        return [self._segment(number) for number in range(len(self._window.segments.starts) + 1)]

    def batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """The batches of a phase as they lie in the files: inside a phase any order gives the same (invariant 6)."""
        where = self._own & (ds.field("segment") == segment) & (ds.field("phase") == phase)
        found = self._data.to_batches(
            columns=list(_BATCH), filter=where, batch_size=_READ_AHEAD, batch_readahead=1, fragment_readahead=1
        )
        for batch in found:
            yield from map(_checked, batch.to_pylist())

    def _segment(self, number: int) -> SegmentPlan:
        since, until = self._window.segments.bounds(number)
        own = [row for row in self._index if row["segment"] == number and row["phase"] != Phase.DDL]
        names = sorted({(row["db"], row["table"]) for row in own})
        tables = [self._window.definitions.within(*name, since, until) for name in names]
        plan = SegmentPlan(
            number=number,
            end_ts=until - 1,
            schema_version=self._version(number),
            expected=expected_of(tables, self._target.db_type) if tables else None,
            rows=sum(row["rows"] for row in own),
        )
        return self._with_ddl(plan) if number else plan

    def _with_ddl(self, plan: SegmentPlan) -> SegmentPlan:
        ddl = self._window.cuts[plan.number - 1]
        batch = next(self.batches(plan.number, Phase.DDL), None)
        if batch is None:
            return plan
        expected = expected_after(ddl.before, ddl.after, self._target.db_type)
        return SegmentPlan(
            plan.number,
            plan.end_ts,
            plan.schema_version,
            batch,
            ddl.commit_ts,
            tuple(expected.names),
            expected,
            ddl.action not in _NOT_REPEATABLE,
            plan.expected,
            plan.rows,
        )

    def _version(self, number: int) -> int:
        if number == len(self._window.segments.starts):
            return self._versions[1]
        return self._window.cuts[number - 1].schema_version if number else self._versions[0]


def index_digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """The digest of batches by their columns of INDEX."""
    digest = hashlib.sha256()
    for row in sorted(rows, key=lambda row: tuple(row[name] for name in INDEX[:3])):
        digest.update("\0".join(str(row[name]) for name in INDEX).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _checked(row: dict[str, object]) -> StatementBatch:
    sql: Sequence[str] = row["sql"]  # type: ignore[assignment]
    if statement_digest(sql) != row["digest"]:
        raise ImmutableWindow(
            "a statement is not the one that was derived",
            where={name: row[name] for name in INDEX[:5]},
            hint="the table `statement` was changed: restore it by Delta time travel, or run convert again",
        )
    fields = {**row, "phase": Phase(row["phase"]), "sql": tuple(sql), "expect": tuple(row["expect"])}  # type: ignore
    return StatementBatch(**fields)  # type: ignore[arg-type]


def statement_table(rows: Sequence[dict[str, object]]) -> pa.Table:
    """Rows of `statement` as Arrow, for Python stages in workers."""
    return pa.Table.from_pylist(list(rows), schema=STATEMENT_ARROW)


STATEMENT_ARROW = pa.schema(
    [
        ("window", pa.string()),
        ("segment", pa.int32()),
        ("phase", pa.int32()),
        ("batch", pa.int32()),
        ("db", pa.string()),
        ("table", pa.string()),
        ("kind", pa.string()),
        ("sql", pa.list_(pa.string())),
        ("expect", pa.list_(pa.int64())),
        ("verify_sql", pa.string()),
        ("verify_rows", pa.int64()),
        ("rows", pa.int64()),
        ("digest", pa.string()),
    ]
)
