"""Row changes of `mutation` found newest first, within a time and a number: what a page may ask (never a whole scan).

Columns that decide are read first, the images only of the groups of rows that have a match. Files are taken in the
order of their commit_ts, so that an answer cut short is whole down to a commit_ts, from where the next one continues.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from binlake.base.lakecolumns import Mutation
from binlake.lake.dataset import open_dataset
from binlake.lake.paths import LakePaths
from binlake.lake.rowhistory import CHANGE_COLUMNS, RowVersion, row_versions, where_commit_ts
from binlake.lake.tables import MUTATION

_FILES_AT_ONCE = 8
"""Files looked at between two looks at the clock; Arrow reads them side by side."""
_PLACE = "__fragment_index"
MOST = 1000
"""Row changes of one answer, those of one commit_ts together included."""
_KEPT_TABLES = 4
_KEPT_FILES = 256
"""A table of more files is read anew for each question: what Arrow keeps of them is some hundred KB a file."""


class Budget:
    """`seconds` from now that a question may take."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def spent(self) -> bool:
        """True when they have passed."""
        return time.monotonic() >= self._until


@dataclass(frozen=True)
class Slice:
    """The newest changes of a question, in the total order: all with commit_ts > `since`.

    `whole`: nothing matches at or below `since`; else older ones may: ask again up to `since`. `late`: the time was
    spent. `left`: how many of the oldest commit_ts are left off, which alone has too many for one answer.
    """

    changes: tuple[RowVersion, ...]
    since: int
    whole: bool
    late: bool = False
    left: int = 0


def find_newest(
    paths: LakePaths, lo: int, hi: int, where: ds.Expression, count: int, budget: Budget, most: int = MOST
) -> Slice:
    """The newest `count` row changes with lo < commit_ts <= hi that match `where`, and those of the oldest's commit_ts.

    At most `most` (at least `count`), and fewer when `budget` is spent before; it goes on until it can get on from
    there. No image is read before it is known how many there are.
    """
    search = _Search(paths, where_commit_ts(lo, hi) & where)
    since, late = search.down_to(lo, hi, count, budget)
    changes, left = search.above(since, most)
    return Slice(tuple(changes), since, whole=since == lo and not late, late=late, left=left)


def find_at_most(paths: LakePaths, lo: int, hi: int, where: ds.Expression, most: int, budget: Budget) -> Slice:
    """All row changes with lo < commit_ts <= hi that match `where`, when they are at most `most`; else none of them."""
    search = _Search(paths, where_commit_ts(lo, hi) & where)
    # One more than may be: to have just as many is no reason to refuse.
    since, late = search.down_to(lo, hi, most + 1, budget)
    if late or since != lo or search.count(lo) > most:
        return Slice((), since, whole=False, late=late)
    return Slice(tuple(search.above(lo, most)[0]), lo, whole=True)


def changes_of_transaction(
    paths: LakePaths, commit_ts: int, start_ts: int, first: int = 0, count: int | None = None
) -> tuple[list[RowVersion], int]:
    """`count` row changes (None: all) of one transaction from number `first` (from 0) on, and how many it has."""
    question = _Question(paths, where_commit_ts(commit_ts - 1, commit_ts) & (ds.field(Mutation.START_TS) == start_ts))
    return question.page(first, count) if question.files else ([], 0)


@dataclass(frozen=True)
class _File:
    most: int
    fragment: ds.Fragment


class _TableCache:
    """The files of the tables asked last: the ends that Arrow read of them need not be read by the next question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data: OrderedDict[str, tuple[tuple[str, int], ds.Dataset, dict[str, int]]] = OrderedDict()

    def of(self, path: str) -> tuple[ds.Dataset, dict[str, int]]:
        """The table at its newest version, and the greatest commit_ts of each file."""
        table = DeltaTable(path)
        # A lake made anew at the same place counts its versions anew.
        state = (str(table.metadata().id), table.version())
        with self._lock:
            known = self._data.pop(path, None)
        if known is None or known[0] != state:
            adds = pa.table(table.get_add_actions(flatten=True))
            most = (
                zip(adds["path"].to_pylist(), adds[f"max.{Mutation.COMMIT_TS}"].to_pylist(), strict=True)
                if adds
                else ()
            )
            known = (state, open_dataset(table), dict(most))
        if len(known[2]) <= _KEPT_FILES:
            with self._lock:
                self._data[path] = known
                while len(self._data) > _KEPT_TABLES:
                    self._data.popitem(last=False)
        return known[1], known[2]


_CACHE = _TableCache()


class _Question:
    """The rows of `mutation` that match `wanted`; `files`: those that may have some, by their greatest commit_ts."""

    def __init__(self, paths: LakePaths, wanted: ds.Expression) -> None:
        self._wanted = wanted
        self.files: list[_File] = []
        try:
            data, most = _CACHE.of(paths.table(MUTATION.name))
        except TableNotFoundError:
            return
        self._schema = data.schema
        files = [_File(most[fragment.path], fragment) for fragment in data.get_fragments(filter=wanted)]
        self.files = sorted(files, key=lambda file: -file.most)

    def page(self, first: int, count: int | None) -> tuple[list[RowVersion], int]:
        """`count` matches (None: all) from number `first` on by the column seq, and how many there are."""
        groups = self._groups(self.files)
        seen = self._narrow(groups, Mutation.SEQ).sort_by(Mutation.SEQ)
        part = seen.slice(first, count)
        if not part.num_rows:
            return [], seen.num_rows
        seqs = part.column(Mutation.SEQ)
        within = (ds.field(Mutation.SEQ) >= seqs[0]) & (ds.field(Mutation.SEQ) <= seqs[-1])
        wanted = _Seen(groups, part).having(pc.scalar(True))
        return row_versions([self._table(wanted, list(CHANGE_COLUMNS), self._wanted & within)]), seen.num_rows

    def look(self, files: Sequence[_File]) -> _Seen:
        """Where and when `files` have matches."""
        groups = self._groups(files)
        return _Seen(groups, self._narrow(groups, Mutation.COMMIT_TS))

    def numbers(self, seen: _Seen, commit_ts: int) -> list[pa.Array]:
        """The column seq of the matches of one commit_ts."""
        groups = seen.having(pc.field(Mutation.COMMIT_TS) == commit_ts)
        here = self._wanted & (ds.field(Mutation.COMMIT_TS) == commit_ts)
        chunks: list[pa.Array] = self._table(groups, [Mutation.SEQ], here)[Mutation.SEQ].chunks
        return chunks

    def read(self, seen: _Seen, since: int, more: ds.Expression) -> list[RowVersion]:
        """The matches above `since` for which `more` holds too."""
        groups = seen.having(pc.field(Mutation.COMMIT_TS) > since)
        return row_versions([self._table(groups, list(CHANGE_COLUMNS), self._wanted & more)])

    def _groups(self, files: Sequence[_File]) -> list[ds.Fragment]:
        """The groups of rows whose statistics do not exclude the question."""
        return [group for file in files for group in file.fragment.split_by_row_group(self._wanted, self._schema)]

    def _narrow(self, groups: Sequence[ds.Fragment], column: str) -> pa.Table:
        """`column` of the matches with the place of their group: no image is read."""
        return self._table(groups, [column, _PLACE], self._wanted)

    def _table(self, groups: Sequence[ds.Fragment], columns: list[str], wanted: ds.Expression) -> pa.Table:
        if not groups:
            kinds = [(name, pa.int32() if name == _PLACE else self._schema.field(name).type) for name in columns]
            return pa.schema(kinds).empty_table()
        together = ds.FileSystemDataset(list(groups), self._schema, groups[0].format, groups[0].filesystem)
        return together.to_table(columns=columns, filter=wanted)


@dataclass(frozen=True)
class _Seen:
    """commit_ts of the matches in `groups` of rows, each with the place of its group."""

    groups: Sequence[ds.Fragment]
    table: pa.Table

    def having(self, which: pc.Expression) -> list[ds.Fragment]:
        """The groups with matches of which `which` holds."""
        return [self.groups[place] for place in sorted(self.table.filter(which).column(_PLACE).unique().to_pylist())]


class _Search:
    """Rounds of a question from the newest files on: moments only, then the images of those that count."""

    def __init__(self, paths: LakePaths, wanted: ds.Expression) -> None:
        self._question = _Question(paths, wanted)
        self._seen: list[_Seen] = []

    def down_to(self, lo: int, hi: int, count: int, budget: Budget) -> tuple[int, bool]:
        """(since, late): all matches above `since` are seen, about `count` of them; `lo` when nothing is below."""
        files = self._question.files
        while files:
            part, files = files[:_FILES_AT_ONCE], files[_FILES_AT_ONCE:]
            self._seen.append(self._question.look(part))
            # What lies below the files that are left may not be all of its commit_ts: it waits for the next answer.
            reached = files[0].most if files else lo
            moments = self._moments(reached)
            if len(moments) > count or (files and len(moments) == count):
                return moments[-count].as_py() - 1, False
            # Files that reach over `hi` hide all the rest: without them there is nothing to go on from.
            if budget.spent and files and reached < hi:
                return reached, True
        return lo, False

    def count(self, since: int) -> int:
        """How many matches are above `since`, among those seen."""
        return len(self._moments(since))

    def above(self, since: int, most: int) -> tuple[list[RowVersion], int]:
        """The matches above `since` in the total order, at most `most`: of the oldest commit_ts some are left off."""
        moments = self._moments(since)
        more = ds.field(Mutation.COMMIT_TS) > since
        if len(moments) > most:
            oldest = moments[0].as_py()
            numbers = pa.concat_arrays([chunk for seen in self._seen for chunk in self._question.numbers(seen, oldest)])
            numbers = numbers.take(pc.array_sort_indices(numbers))
            last = numbers[len(numbers) - (len(moments) - most) - 1].as_py()
            more &= (ds.field(Mutation.COMMIT_TS) > oldest) | (ds.field(Mutation.SEQ) <= last)
        found = [change for seen in self._seen for change in self._question.read(seen, since, more)]
        return sorted(found, key=lambda change: change.place), len(moments) - len(found)

    def _moments(self, since: int) -> pa.Array:
        """commit_ts of the matches above `since`, ascending."""
        parts = [
            seen.table.filter(pc.field(Mutation.COMMIT_TS) > since).column(Mutation.COMMIT_TS).chunks
            for seen in self._seen
        ]
        found = pa.chunked_array([chunk for part in parts for chunk in part], pa.int64()).combine_chunks()
        return found.take(pc.array_sort_indices(found))
