"""What land pulled from the pumps, asked before it is sealed: rows of `pump_source.SCHEMA_DDL`, wherever they are.

Two places keep the same answers: the driver's memory for a small window (here), Spark's files for a large one
(`spark_jobs.staging`). A small window is quicker without a job of Spark's: each costs more than all its rows.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from binlake import tso
from binlake.lake.tables import BINLOG
from spark_jobs.lake import Rows
from spark_jobs.pump_source import ARROW_SCHEMA, PumpPull
from spark_jobs.results import Bounds


@dataclass(frozen=True)
class PumpPart:
    """One pump's part: commit_ts of its proof (0 = none), transactions, DDL among them, newest schema version."""

    proof: int
    entities: int
    ddls: int
    schema_version: int


NOTHING = PumpPart(0, 0, 0, 0)


@dataclass(frozen=True)
class PulledDdl:
    """A DDL binlog as a pump gave it: `state` is TiDB's schema state."""

    commit_ts: int
    job_id: int
    query: str
    state: int


class Pulled(Protocol):
    """The pulled rows of (lo, hi], proofs among them; every question names the range that counts by now."""

    def survey(self, bounds: Bounds) -> dict[str, PumpPart]:
        """What each pump gave for `bounds`, by node id."""

    def conflict(self, bounds: Bounds) -> int | None:
        """The least commit_ts of `bounds` for which two pumps hold different content."""

    def ddls(self, bounds: Bounds) -> list[PulledDdl]:
        """The DDL binlogs of `bounds`, each once, in commit order."""

    def first_row(self, since: int, version: int = 0) -> int | None:
        """Least commit_ts >= `since` of a transaction with row changes, of schema `version` or a later one."""

    def transactions(self, bounds: Bounds) -> Rows:
        """Rows of `binlog` within `bounds`: one transaction per commit_ts, whichever pump it came from.

        The same transaction may come from two pumps (a client that timed out, tidb-binlog 4): the least node id wins,
        so that a second attempt keeps the same one.
        """


def pull_here(pull: PumpPull, most_bytes: int) -> pa.Table | None:
    """The whole pull in this process, all pumps side by side; None when it is more than `most_bytes` of Arrow.

    Raises SourceUnavailable, LostRange, WireError.
    """
    room = _Room(most_bytes)
    with ThreadPoolExecutor(max(len(pull.pumps), 1), thread_name_prefix="pull") as pool:
        try:
            parts = list(pool.map(room.taken, (pull.of(place) for place in range(len(pull.pumps)))))
        except BaseException:
            # Whoever leaves here by an error, or by a signal, waits for the others.
            room.end()
            raise
    return None if room.full else pa.Table.from_batches([b for part in parts for b in part], ARROW_SCHEMA)


class _Room:
    """Bytes that all pumps may fill together; once they are, everybody stops."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """More came than there was room for."""
        return self._left < 0

    def taken(self, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """`batches`, as far as there is room. Raises what they raise, and then nobody has room any more."""
        found = []
        try:
            for batch in batches:
                self._take(batch.nbytes)
                if self.full:
                    return []
                found.append(batch)
        except BaseException:
            self.end()
            raise
        return found

    def end(self) -> None:
        """Everybody stops at the next batch."""
        with self._lock:
            self._left = -1

    def _take(self, size: int) -> None:
        with self._lock:
            self._left = self._left - size if self._left >= 0 else -1


class PulledHere:
    """A `Pulled` in the memory of the driver."""

    def __init__(self, rows: pa.Table) -> None:
        kinds = rows["kind"]
        self._proofs = rows.filter(pc.equal(kinds, "proof"))
        self._parts = rows.filter(pc.not_equal(kinds, "proof"))

    def survey(self, bounds: Bounds) -> dict[str, PumpPart]:
        """As Pulled."""
        proofs: dict[str, int] = defaultdict(int)
        for row in self._proofs.select(["pump", "commit_ts"]).to_pylist():
            proofs[row["pump"]] = max(proofs[row["pump"]], row["commit_ts"])
        firsts = self._firsts(bounds)
        return {pump: _part(firsts.filter(pc.equal(firsts["pump"], pump)), ts) for pump, ts in proofs.items()}

    def conflict(self, bounds: Bounds) -> int | None:
        """As Pulled."""
        seen: dict[int, str] = {}
        found = [
            row["commit_ts"]
            for row in _between(self._parts, bounds).select(["commit_ts", "content"]).to_pylist()
            if seen.setdefault(row["commit_ts"], row["content"]) != row["content"]
        ]
        return min(found, default=None)

    def ddls(self, bounds: Bounds) -> list[PulledDdl]:
        """As Pulled."""
        firsts = self._firsts(bounds)
        rows = firsts.filter(pc.equal(firsts["kind"], "ddl"))
        columns = (rows[name].to_pylist() for name in ("commit_ts", "job_id", "query", "schema_state"))
        return ddls_of(zip(*columns, strict=True))

    def first_row(self, since: int, version: int = 0) -> int | None:
        """As Pulled."""
        rows = self._parts
        own = pc.and_(pc.equal(rows["kind"], "dml"), pc.greater_equal(rows["schema_version"], version))
        own = pc.and_(own, pc.greater_equal(rows["commit_ts"], since))
        found: int | None = pc.min(rows.filter(own)["commit_ts"]).as_py()
        return found

    def transactions(self, bounds: Bounds) -> pa.Table:
        """As Pulled, in order of time."""
        ordered = _between(self._parts, bounds).sort_by(
            [("commit_ts", "ascending"), ("pump", "ascending"), ("chunk", "ascending")]
        )
        chosen: dict[int, str] = {}
        seen: set[tuple[int, int]] = set()
        kept = []
        places = zip(*(ordered[name].to_pylist() for name in ("commit_ts", "pump", "chunk")), strict=True)
        for place, (ts, pump, chunk) in enumerate(places):
            if chosen.setdefault(ts, pump) == pump and (ts, chunk) not in seen:
                seen.add((ts, chunk))
                kept.append(place)
        found = ordered.take(pa.array(kept, pa.int64()))
        days = pa.array([tso.to_datetime(ts).date() for ts in found["commit_ts"].to_pylist()], pa.date32())
        return found.append_column("commit_date", days).select(BINLOG.column_names())

    def _firsts(self, bounds: Bounds) -> pa.Table:
        """One row a transaction and pump."""
        rows = _between(self._parts, bounds)
        return rows.filter(pc.equal(rows["chunk"], 0))


def ddls_of(rows: Iterable[tuple[int, int, str, int]]) -> list[PulledDdl]:
    """(commit_ts, job_id, query, schema_state), some of them twice, as `Pulled.ddls` gives them."""
    return [PulledDdl(*row) for row in sorted(set(rows))]


def _between(rows: pa.Table, bounds: Bounds) -> pa.Table:
    ts = rows["commit_ts"]
    return rows.filter(pc.and_(pc.greater(ts, bounds.lo), pc.less_equal(ts, bounds.hi)))


def _part(firsts: pa.Table, proof: int) -> PumpPart:
    kinds = firsts["kind"]
    version = pc.max(firsts.filter(pc.equal(kinds, "dml"))["schema_version"]).as_py()
    return PumpPart(proof, firsts.num_rows, pc.sum(pc.equal(kinds, "ddl")).as_py() or 0, version or 0)
