"""Compares one table: chunks by checksum, unequal chunks part by part, and unequal parts row by row.

Memory is bounded: the parts of `NARROWED` chunks, and `READ_ROWS` rows of each side at a time.

The progress at one checkpoint, which chunks are equal, is stored in the lake's table `verify`. It is not valid at
another checkpoint; a finished run clears it. It only saves work: a run whose progress cannot be stored goes on, because
its result is worth more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow.dataset as ds
import structlog
from deltalake.exceptions import DeltaError

from binlake.common.lakecolumns import Verify
from binlake.errors import BinlakeError
from binlake.lake.control import ControlTable
from binlake.lake.controltables import VERIFY
from binlake.lake.paths import LakePaths
from binlake.repair.chunks import Cuts
from binlake.repair.differences import Difference, Row, RowsOfTable
from binlake.repair.serverside import Digest, SqlTable

FLUSH_CHUNKS = 64
"""The number of chunks whose comparison a killed run may lose."""

_CUTS = -1
_UNWRITABLE = (BinlakeError, DeltaError, OSError)

log = structlog.get_logger(__name__)

Name = tuple[str, str]
NARROWED = 1000
"""The number of unequal chunks that are divided into parts at a time."""
READ_ROWS = 200_000
"""The number of rows of unequal parts that are read at a time from each side. A larger part is only counted."""
_PART_ROWS = 64
_MOST_PARTS = 1 << 16
_NOTHING = Digest(0, 0)


class ExpectedRows(Protocol):
    """The rows that a table must have."""

    def compute_digests(self, numbers: Sequence[int]) -> Iterator[tuple[int, Digest]]:
        """The digest of each chunk."""

    def compute_part_digests(self, wanted: Mapping[int, int]) -> dict[int, dict[int, Digest]]:
        """By chunk of `wanted` (number -> parts), the digest of each part that has rows."""

    def read_rows(self, wanted: Mapping[int, tuple[int, Sequence[int]]]) -> list[Row]:
        """The rows of some parts. `wanted`: chunk number -> (number of parts, the wanted parts)."""


@dataclass
class TableResult:
    """The result for a table: `compared` of its `chunks`, with `rows` rows, by this run and the runs that it continues.

    `missing`, `extra`, `different`: numbers of rows; `unlisted`: rows in unequal parts that were not compared
    individually; `structure`: how its definition differs; `inexact`: why its rows were not compared with the lake's.
    """

    db: str
    table: str
    chunks: int = 0
    compared: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    unlisted: int = 0
    structure: list[str] = field(default_factory=list)
    inexact: str = ""
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """True if no compared row and no definition differs."""
        return not (self.missing or self.extra or self.different or self.unlisted or self.structure)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "equal": self.equal, "seconds": round(self.seconds, 3)}


class ReadPace:
    """Limits reading to `rows_per_second` rows of the target; 0 = unlimited."""

    def __init__(self, rows_per_second: int) -> None:
        self._most = rows_per_second
        self._began = time.monotonic()
        self._rows = 0

    def read(self, rows: int) -> None:
        """Count `rows`, and sleep until the average rate is within the limit."""
        self._rows += rows
        if self._most:
            time.sleep(max(0.0, self._began + self._rows / self._most - time.monotonic()))


def compare_table(
    target: SqlTable,
    expected_rows: ExpectedRows,
    numbers: Sequence[int],
    result: TableResult,
    state: VerifyState,
    on_chunk: Callable[[int], None],
    most: int,
) -> list[Difference]:
    """Compare the chunks `numbers` and fill `result`. `on_chunk` is called with the number of rows of each chunk.

    After `most` differences the remaining unequal chunks are only counted.
    """
    name = (result.db, result.table)
    already_equal = state.look_up_equal_chunks(name)
    result.rows += sum(rows for number, rows in already_equal.items() if number in numbers)
    left = [number for number in numbers if number not in already_equal]
    unequal: dict[int, int] = {}
    for number, expected in expected_rows.compute_digests(left):
        actual = target.compute_digest(number)
        result.rows += actual.rows
        if actual == expected:
            state.record_equal(name, number, actual.rows)
        else:
            unequal[number] = max(actual.rows, expected.rows)
        on_chunk(actual.rows)
    result.compared = len(numbers)
    return _Differences(target, expected_rows, result, most).find(unequal)


class _Differences:
    """Divides unequal chunks into parts and reads the rows of unequal parts, until `most` differences are found."""

    def __init__(self, target: SqlTable, expected_rows: ExpectedRows, result: TableResult, most: int) -> None:
        self._target, self._expected_rows, self._result, self._most = target, expected_rows, result, most
        self._found: list[Difference] = []

    def find(self, unequal: Mapping[int, int]) -> list[Difference]:
        """The differences in the `unequal` chunks, given as rows by chunk number."""
        chunks = list(unequal)
        for start in range(0, len(chunks), NARROWED):
            group = {number: unequal[number] for number in chunks[start : start + NARROWED]}
            if len(self._found) >= self._most:
                self._result.unlisted += sum(group.values())
            else:
                self._narrow(group)
        return self._merge_differences()

    def _merge_differences(self) -> list[Difference]:
        """Merge the differences of all pieces, because different forms of a text may put one row into two pieces."""
        rows = RowsOfTable(self._target.plan.table)
        for difference in self._found:
            rows.expected += [difference.expected] * difference.copies if difference.expected is not None else []
            rows.found += [difference.found] * difference.copies if difference.found is not None else []
        differences = rows.list_differences()
        if self._result.unlisted and self._target.plan.table.find_identity().kind == "row":
            # The counterpart of a row may be among rows that were not read, so no difference is certain.
            self._result.unlisted += sum(difference.copies for difference in differences)
            return []
        for difference in differences:
            setattr(self._result, difference.kind, getattr(self._result, difference.kind) + difference.copies)
        return differences

    def _narrow(self, group: Mapping[int, int]) -> None:
        wanted = {number: _count_parts(rows) for number, rows in group.items()}
        actual, expected = self._target.compute_part_digests(wanted), self._expected_rows.compute_part_digests(wanted)
        piece: dict[int, tuple[int, list[int]]] = {}
        room = READ_ROWS
        for number, part, rows in _find_unequal_parts(actual, expected):
            if rows > READ_ROWS or len(self._found) >= self._most:
                self._result.unlisted += rows
                continue
            if rows > room:
                self._read(piece)
                piece, room = {}, READ_ROWS
            piece.setdefault(number, (wanted[number], []))[1].append(part)
            room -= rows
        self._read(piece)

    def _read(self, piece: Mapping[int, tuple[int, Sequence[int]]]) -> None:
        if piece:
            table = self._target.plan.table
            self._found += RowsOfTable(
                table, self._expected_rows.read_rows(piece), self._target.read_rows(piece)
            ).list_differences()


def _count_parts(rows: int) -> int:
    return min(_MOST_PARTS, 1 << max(0, (rows // _PART_ROWS).bit_length()))


def _find_unequal_parts(
    actual: Mapping[int, Mapping[int, Digest]], expected: Mapping[int, Mapping[int, Digest]]
) -> Iterator[tuple[int, int, int]]:
    for number in expected:
        mine, theirs = expected[number], actual[number]
        for part in sorted(mine.keys() | theirs.keys()):
            one, other = mine.get(part, _NOTHING), theirs.get(part, _NOTHING)
            if one != other:
                yield number, part, max(one.rows, other.rows)


class VerifyState:
    """Progress at commit_ts `ts` `against` lake or source. The caller holds the lake's lock `verify`."""

    def __init__(self, paths: LakePaths, ts: int, against: str) -> None:
        self._table = ControlTable(paths.locate_table(VERIFY.name), VERIFY)
        self._run_columns = {Verify.COMMIT_TS: ts, Verify.AGAINST: against}
        self._pending: list[dict[str, object]] = []
        self._cuts: dict[Name, Cuts] = {}
        self._equal: dict[Name, dict[int, int]] = {}
        for row in self._table.read_rows(
            where=(ds.field(Verify.COMMIT_TS) == ts) & (ds.field(Verify.AGAINST) == against)
        ):
            name = (row[Verify.DB], row[Verify.TABLE])
            if row[Verify.CHUNK] != _CUTS:
                self._equal.setdefault(name, {})[row[Verify.CHUNK]] = row[Verify.ROWS]
            elif (cuts := Cuts.from_json(row[Verify.CUTS])) is not None:
                self._cuts[name] = cuts
            else:
                # An older version of Binlake wrote it: its chunks cannot be matched with this run's.
                self.clear()
                self._cuts, self._equal = {}, {}
                return

    def find_cuts(self, name: Name) -> Cuts | None:
        """How the table was split; None if its comparison did not begin."""
        return self._cuts.get(name)

    def begin(self, name: Name, cuts: Cuts) -> None:
        """Record how the table is split. Durable at once for a large table, since this takes a pass over its index."""
        self._record(name, _CUTS, 0, cuts.to_json())
        if cuts.count > 1:
            self.flush()

    def look_up_equal_chunks(self, name: Name) -> dict[int, int]:
        """By chunk number, the number of rows of the chunks that need not be read again."""
        # Without the recorded cuts, the chunks would differ.
        return self._equal.get(name, {}) if name in self._cuts else {}

    def record_equal(self, name: Name, chunk: int, rows: int) -> None:
        """Record an equal chunk. Durable after some more chunks, or after `flush`."""
        self._record(name, chunk, rows, "")
        if len(self._pending) >= FLUSH_CHUNKS:
            self.flush()

    def flush(self) -> None:
        """Make all records durable, if the lake can be written."""
        pending, self._pending = self._pending, []
        try:
            self._table.append(pending)
        except _UNWRITABLE as error:
            log.warning("verify_progress_not_stored", error=str(error), result="an unfinished run starts again")

    def clear(self) -> None:
        """Delete the state after the run has ended."""
        self._pending = []
        try:
            self._table.clear()
        except _UNWRITABLE as error:
            hint = "run the next verify with --fresh: it would take over what this one found equal"
            log.error("verify_progress_not_cleared", error=str(error), hint=hint)

    def _record(self, name: Name, chunk: int, rows: int, cuts: str) -> None:
        columns = {
            **self._run_columns,
            Verify.DB: name[0],
            Verify.TABLE: name[1],
            Verify.AT_MS: time.time_ns() // 1_000_000,
        }
        self._pending.append({**columns, Verify.CHUNK: chunk, Verify.ROWS: rows, Verify.CUTS: cuts})
