"""Queries over the rows that land pulled from the pumps, before they are sealed (rows of `pump_source.SCHEMA_DDL`).

Each query (`Question`) is a function over Arrow. The driver calls it on the rows it has; for rows that Spark pulled,
the workers call it and the driver combines their answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from binlake.base.lakecolumns import Binlog
from binlake.lake.tables import BINLOG
from binlake.rows.schema import WindowDdl
from spark_jobs.job.lake import Rows, build_local_table
from spark_jobs.job.results import Bounds
from spark_jobs.land.pump_source import digest_content

_DAY_MS = 86_400_000


@dataclass(frozen=True)
class PumpPart:
    """One pump's part: commit_ts of its proof (0 = no proof), transactions, DDL among them, newest schema version."""

    proof: int
    entities: int
    ddls: int
    schema_version: int


NOTHING = PumpPart(0, 0, 0, 0)


class Question(Protocol):
    """A function over some `columns` of pulled rows; it may be called piece by piece, its answers are then joined."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""

    @property
    def answer(self) -> str:
        """The columns of its answer, as a Spark schema text."""

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The answer for `rows`."""


class PulledRows(Protocol):
    """Access to pulled rows, wherever they are stored."""

    def ask(self, question: Question) -> pa.Table:
        """The answers for all rows, in the driver's memory."""

    def ask_in_place(self, question: Question) -> Rows:
        """The same, left where the rows are."""


@dataclass(frozen=True)
class InMemory:
    """Rows in the driver's memory."""

    rows: pa.Table

    def ask(self, question: Question) -> pa.Table:
        """As PulledRows."""
        return question(self.rows.select(list(question.columns)))

    def ask_in_place(self, question: Question) -> pa.Table:
        """As PulledRows, sorted by commit_ts and chunk."""
        return _sort(self.ask(question))


class Pulled:
    """The pulled rows of (lo, hi], including proofs; each query names its range, because hi may have been lowered."""

    def __init__(self, rows: PulledRows) -> None:
        self._rows = rows
        self._shared: dict[Bounds, dict[int, list[str]]] = {}

    def survey(self, bounds: Bounds) -> dict[str, PumpPart]:
        """Each pump's part of `bounds`, by node id."""
        parts: dict[str, list[PumpPart]] = defaultdict(list)
        for row in self._rows.ask(_Survey(bounds)).to_pylist():
            parts[row.pop(Binlog.PUMP)].append(PumpPart(**row))
        return {pump: _sum_parts(own) for pump, own in parts.items()}

    def read_proofs(self) -> dict[str, int]:
        """The commit_ts up to which each pump has delivered everything it holds."""
        return {pump: part.proof for pump, part in self.survey(Bounds(0, 0)).items()}

    def find_conflict(self, bounds: Bounds) -> int | None:
        """The smallest commit_ts of `bounds` for which two pumps hold different content."""
        shared = self._find_shared_transactions(bounds)
        if not shared:
            return None
        contents: dict[int, set[str]] = defaultdict(set)
        for row in self._rows.ask(_Contents(frozenset(shared))).to_pylist():
            contents[row[Binlog.COMMIT_TS]].add(row["content"])
        return min((ts for ts, contents_of_ts in contents.items() if len(contents_of_ts) > 1), default=None)

    def read_ddls(self, bounds: Bounds) -> list[WindowDdl]:
        """The DDL binlogs of `bounds`, without duplicates, in commit order, without their jobs."""
        answer = self._rows.ask(_Ddls(bounds))
        rows = zip(*(column.to_pylist() for column in answer.columns), strict=True)
        return [WindowDdl(*row) for row in sorted(set(rows))]

    def find_first_row(self, since: int, version: int = 0) -> int | None:
        """Smallest commit_ts >= `since` of a transaction with row changes, of schema `version` or a later one."""
        least: int | None = pc.min(self._rows.ask(_FirstRow(since, version))[Binlog.COMMIT_TS]).as_py()
        return least

    def select_transactions(self, bounds: Bounds) -> Rows:
        """Rows of `binlog` within `bounds`: one transaction per commit_ts, even if several pumps delivered it.

        Two pumps may have the same transaction (after a client timeout, tidb-binlog 4). The smallest node id wins, so
        that a second attempt chooses the same copy.
        """
        left_out: dict[str, list[int]] = defaultdict(list)
        for ts, pumps in self._find_shared_transactions(bounds).items():
            for pump in sorted(set(pumps))[1:]:
                left_out[pump].append(ts)
        return self._rows.ask_in_place(_Transactions(bounds, left_out))

    def _find_shared_transactions(self, bounds: Bounds) -> dict[int, list[str]]:
        """The pumps of each transaction that more than one pump delivered."""
        if bounds not in self._shared:
            self._shared[bounds] = _find_shared(self._rows.ask(_Owners(bounds)))
        return self._shared[bounds]


def _sum_parts(parts: list[PumpPart]) -> PumpPart:
    return PumpPart(
        max(part.proof for part in parts),
        sum(part.entities for part in parts),
        sum(part.ddls for part in parts),
        max(part.schema_version for part in parts),
    )


def _find_shared(owners: pa.Table) -> dict[int, list[str]]:
    ts = np.asarray(owners[Binlog.COMMIT_TS])
    order = np.argsort(ts, kind="stable")
    again = np.flatnonzero(np.diff(ts[order]) == 0)
    rows = np.unique(order[np.concatenate((again, again + 1))])
    pumps: dict[int, list[str]] = defaultdict(list)
    for one, pump in zip(ts[rows].tolist(), owners[Binlog.PUMP].take(pa.array(rows)).to_pylist(), strict=True):
        pumps[one].append(pump)
    return dict(pumps)


@dataclass(frozen=True)
class _Survey:
    """Each pump's part; its proof is the greatest commit_ts of its proof rows."""

    bounds: Bounds
    columns: ClassVar = (Binlog.PUMP, Binlog.KIND, Binlog.COMMIT_TS, Binlog.CHUNK, Binlog.SCHEMA_VERSION)
    answer: ClassVar = "pump STRING, proof BIGINT, entities BIGINT, ddls BIGINT, schema_version BIGINT"

    def __call__(self, rows: pa.Table) -> pa.Table:
        return build_local_table(
            [
                (pump, *astuple(_build_part(rows, pump, self.bounds)))
                for pump in pc.unique(rows[Binlog.PUMP]).to_pylist()
            ],
            self.answer,
        )


def _build_part(rows: pa.Table, pump: str, bounds: Bounds) -> PumpPart:
    own = _convert_flags(pc.equal(rows[Binlog.PUMP], pump))
    ts, version = np.asarray(rows[Binlog.COMMIT_TS]), np.asarray(rows[Binlog.SCHEMA_VERSION])
    is_proof, is_ddl = (_convert_flags(pc.equal(rows[Binlog.KIND], kind)) & own for kind in ("proof", "ddl"))
    first = own & ~is_proof & _mark_within(ts, bounds) & (np.asarray(rows[Binlog.CHUNK]) == 0)
    return PumpPart(
        proof=int(ts[is_proof].max(initial=0)),
        entities=int(first.sum()),
        ddls=int((first & is_ddl).sum()),
        schema_version=int(version[first & ~is_ddl].max(initial=0)),
    )


@dataclass(frozen=True)
class _Owners:
    """Which pump delivered which transaction."""

    bounds: Bounds
    columns: ClassVar = (Binlog.COMMIT_TS, Binlog.PUMP, Binlog.KIND, Binlog.CHUNK)
    answer: ClassVar = "commit_ts BIGINT, pump STRING"

    def __call__(self, rows: pa.Table) -> pa.Table:
        return _select_transactions(rows, self.bounds, first=True).select([Binlog.COMMIT_TS, Binlog.PUMP])


@dataclass(frozen=True)
class _Contents:
    """The content of some transactions."""

    commit_ts: frozenset[int]
    columns: ClassVar = (Binlog.COMMIT_TS, Binlog.KIND, Binlog.CHUNK, "content", Binlog.PAYLOAD)
    answer: ClassVar = "commit_ts BIGINT, content STRING"

    def __call__(self, rows: pa.Table) -> pa.Table:
        wanted = np.isin(np.asarray(rows[Binlog.COMMIT_TS]), list(self.commit_ts)) & (
            np.asarray(rows[Binlog.CHUNK]) == 0
        )
        wanted_rows = rows.filter(pa.array(wanted & _convert_flags(pc.not_equal(rows[Binlog.KIND], "proof"))))
        values = zip(
            *(wanted_rows[name].to_pylist() for name in (Binlog.COMMIT_TS, "content", Binlog.PAYLOAD)), strict=True
        )
        return build_local_table(
            [(ts, content or digest_content(payload)) for ts, content, payload in values], self.answer
        )


_OF_DDL = [Binlog.COMMIT_TS, Binlog.START_TS, Binlog.JOB_ID, Binlog.SCHEMA_STATE, "query"]


@dataclass(frozen=True)
class _Ddls:
    """The DDL binlogs."""

    bounds: Bounds
    columns: ClassVar = (*_OF_DDL, Binlog.KIND, Binlog.CHUNK)
    answer: ClassVar = "commit_ts BIGINT, start_ts BIGINT, job_id BIGINT, schema_state INT, query STRING"

    def __call__(self, rows: pa.Table) -> pa.Table:
        ddls = _select_transactions(rows.filter(pc.equal(rows[Binlog.KIND], "ddl")), self.bounds, first=True)
        return ddls.select(_OF_DDL)


@dataclass(frozen=True)
class _FirstRow:
    """The smallest commit_ts of row changes."""

    since: int
    version: int
    columns: ClassVar = (Binlog.COMMIT_TS, Binlog.KIND, Binlog.SCHEMA_VERSION)
    answer: ClassVar = "commit_ts BIGINT"

    def __call__(self, rows: pa.Table) -> pa.Table:
        own = pc.and_(pc.equal(rows[Binlog.KIND], "dml"), pc.greater_equal(rows[Binlog.SCHEMA_VERSION], self.version))
        own = pc.and_(own, pc.greater_equal(rows[Binlog.COMMIT_TS], self.since))
        least = pc.min(rows[Binlog.COMMIT_TS].filter(own)).as_py()
        return build_local_table([] if least is None else [(least,)], self.answer)


@dataclass(frozen=True)
class _Transactions:
    """Rows of `binlog`, without duplicates that another pump delivers (`left_out`: commit_ts by pump)."""

    bounds: Bounds
    left_out: Mapping[str, list[int]] = field(default_factory=dict)
    columns: ClassVar = tuple(name for name in BINLOG.list_column_names() if name != "commit_date")
    answer: ClassVar = BINLOG.build_spark_schema()

    def __call__(self, rows: pa.Table) -> pa.Table:
        transactions = _select_transactions(rows, self.bounds)
        if self.left_out:
            ts, doubled = np.asarray(transactions[Binlog.COMMIT_TS]), np.zeros(transactions.num_rows, np.bool_)
            for pump, own in self.left_out.items():
                doubled |= np.isin(ts, own) & _convert_flags(pc.equal(transactions[Binlog.PUMP], pump))
            transactions = transactions.filter(pa.array(~doubled))
        days = (np.asarray(transactions[Binlog.COMMIT_TS]) >> 18) // _DAY_MS
        transactions = transactions.append_column(Binlog.COMMIT_DATE, pa.array(days.astype(np.int32)).cast(pa.date32()))
        return transactions.select(BINLOG.list_column_names())


def _select_transactions(rows: pa.Table, bounds: Bounds, *, first: bool = False) -> pa.Table:
    """Rows of transactions within `bounds`, without proofs; `first`: only the first row of each transaction."""
    own = _mark_within(np.asarray(rows[Binlog.COMMIT_TS]), bounds) & _convert_flags(
        pc.not_equal(rows[Binlog.KIND], "proof")
    )
    if first:
        own &= np.asarray(rows[Binlog.CHUNK]) == 0
    batches, at = list[pa.RecordBatch](), 0
    for batch in rows.to_batches():
        inside = own[at : at + batch.num_rows]
        at += batch.num_rows
        # Most batches are taken whole, without copying payloads.
        batches.append(batch if inside.all() else batch.filter(pa.array(inside)))
    return pa.Table.from_batches(batches, rows.schema)


def _mark_within(ts: NDArray[np.int64], bounds: Bounds) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (ts > bounds.lo) & (ts <= bounds.hi)
    return inside


def _convert_flags(flags: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(flags, np.bool_)


def _sort(rows: pa.Table) -> pa.Table:
    ts, chunk = np.asarray(rows[Binlog.COMMIT_TS]), np.asarray(rows[Binlog.CHUNK])
    steps = np.diff(ts)
    if (steps > 0).all():
        return rows
    return rows.take(pa.array(np.lexsort((chunk, ts))))
