"""Searches row changes of `mutation`, newest first, with limits of time and number for pages (never a full scan).

Columns of the condition are read first, images only from row groups with a match. Files are read in the order of their
commit_ts, so a truncated answer is complete down to a commit_ts, at which the next query continues.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import TableNotFoundError

from binlake.common.lakecolumns import Mutation
from binlake.lake.access import is_remote
from binlake.lake.damage import name_damage
from binlake.lake.mutations import CHANGE_COLUMNS, RowVersion, build_row_versions, match_commit_ts
from binlake.lake.opentable import hold_whole, open_dataset, open_once
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MUTATION

_FILES_AT_ONCE = 8
"""Files searched between two checks of the time budget; Arrow reads them in parallel."""
_PLACE = "__fragment_index"
MOST = 1000
"""Maximum row changes of one answer, even if all have the same commit_ts."""
_KEPT_TABLES = 4
_KEPT_FILES = 256
"""A table with more files is not cached, because Arrow uses some hundred KB of memory per file."""


class TimeBudget:
    """The time that a query may take: `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def spent(self) -> bool:
        """True when the time has passed."""
        return time.monotonic() >= self._until


@dataclass(frozen=True)
class Slice:
    """The newest changes of a query in the total order: all with commit_ts > `since`.

    `whole`: nothing matches at or below `since`; else older changes may match: query again up to `since`. `late`: the
    time ran out. `left`: how many changes of the oldest commit_ts are left out, because it has too many for one answer.
    """

    changes: tuple[RowVersion, ...]
    since: int
    whole: bool
    late: bool = False
    left: int = 0


def find_newest(
    paths: LakePaths, lo: int, hi: int, where: ds.Expression, count: int, budget: TimeBudget, most: int = MOST
) -> Slice:
    """The newest `count` row changes with lo < commit_ts <= hi that match `where`, and all at the oldest commit_ts.

    Returns at most `most` (at least `count`), and fewer if `budget` runs out; but it continues until a next query can
    resume. No image is read before the number of matches is known.
    """
    search = _Search(paths, match_commit_ts(lo, hi) & where)
    since, late = search.search_down(lo, hi, count, budget)
    changes, left = search.read_above(since, most)
    return Slice(tuple(changes), since, whole=since == lo and not late, late=late, left=left)


def find_at_most(paths: LakePaths, lo: int, hi: int, where: ds.Expression, most: int, budget: TimeBudget) -> Slice:
    """All row changes with lo < commit_ts <= hi that match `where` if they are at most `most`, else none."""
    search = _Search(paths, match_commit_ts(lo, hi) & where)
    # Search for one more than the limit, as exactly the limit is allowed.
    since, late = search.search_down(lo, hi, most + 1, budget)
    if late or since != lo or search.count(lo) > most:
        return Slice((), since, whole=False, late=late)
    return Slice(tuple(search.read_above(lo, most)[0]), lo, whole=True)


def read_at_most(
    paths: LakePaths, lo: int, hi: int, where: ds.Expression, most: int, budget: TimeBudget
) -> tuple[pa.Table | None, bool]:
    """As `find_at_most`, as a table (CHANGE_COLUMNS) in any order; None if there are more, or (True) time ran out."""
    search = _Search(paths, match_commit_ts(lo, hi) & where)
    since, late = search.search_down(lo, hi, most + 1, budget)
    if late or since != lo or search.count(lo) > most:
        return None, late
    return search.read_tables_above(lo), False


def read_changes_of_transaction(
    paths: LakePaths, commit_ts: int, start_ts: int, first: int = 0, count: int | None = None
) -> tuple[list[RowVersion], int]:
    """`count` row changes (None: all) of one transaction, starting at index `first`, and their total number."""
    query = _Query(paths, match_commit_ts(commit_ts - 1, commit_ts) & (ds.field(Mutation.START_TS) == start_ts))
    return query.read_page(first, count) if query.files else ([], 0)


_Sizes = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class _File:
    """A file of `mutation`: its greatest commit_ts, and its bytes."""

    most: int
    size: int
    fragment: ds.Fragment


class _TableCache:
    """Caches the files of the last used tables, so that the next query does not read their footers again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data: OrderedDict[str, tuple[tuple[str, int], ds.Dataset, _Sizes]] = OrderedDict()

    def open_table(self, path: str) -> tuple[ds.Dataset, _Sizes]:
        """The table at its newest version, and of each file the greatest commit_ts and the bytes."""
        table = open_once(path)
        # The versions of a lake recreated at the same path start again, so compare the id too.
        state = (str(table.metadata().id), table.version())
        with self._lock:
            known = self._data.pop(path, None)
        if known is None or known[0] != state:
            adds = pa.table(table.get_add_actions(flatten=True))
            names = ("path", f"max.{Mutation.COMMIT_TS}", "size_bytes")
            rows = zip(*(adds[name].to_pylist() for name in names), strict=True) if adds else ()
            known = (state, open_dataset(table), {file: (most, size) for file, most, size in rows})
        if len(known[2]) <= _KEPT_FILES:
            with self._lock:
                self._data[path] = known
                while len(self._data) > _KEPT_TABLES:
                    self._data.popitem(last=False)
        return known[1], known[2]


_CACHE = _TableCache()


class _Query:
    """The rows of `mutation` that match `wanted`. `files`: those that may have matches, newest first."""

    def __init__(self, paths: LakePaths, wanted: ds.Expression) -> None:
        self._wanted = wanted
        self._path = paths.locate_table(MUTATION.name)
        self.files: list[_File] = []
        try:
            data, sizes = _CACHE.open_table(self._path)
        except TableNotFoundError:
            return
        self._schema = data.schema
        for fragment in data.get_fragments(filter=wanted):
            most, size = sizes[fragment.path]
            self.files.append(_File(most, size, fragment))
        self.files.sort(key=lambda file: -file.most)

    def read_page(self, first: int, count: int | None) -> tuple[list[RowVersion], int]:
        """`count` matches (None: all) in the order of seq, starting at index `first`, and their total number."""
        groups = self._select_groups(self.files)
        matches = self._read_column(groups, Mutation.SEQ).sort_by(Mutation.SEQ)
        part = matches.slice(first, count)
        if not part.num_rows:
            return [], matches.num_rows
        seqs = part.column(Mutation.SEQ)
        within = (ds.field(Mutation.SEQ) >= seqs[0]) & (ds.field(Mutation.SEQ) <= seqs[-1])
        groups_of_page = _Matches(groups, part).select_groups(pc.scalar(True))
        return build_row_versions(
            [self._read_columns(groups_of_page, list(CHANGE_COLUMNS), self._wanted & within)]
        ), matches.num_rows

    def find_matches(self, files: Sequence[_File]) -> _Matches:
        """The matches in `files`."""
        groups = self._select_groups(files)
        return _Matches(groups, self._read_column(groups, Mutation.COMMIT_TS))

    def read_numbers(self, matches: _Matches, commit_ts: int) -> list[pa.Array]:
        """The column seq of the matches at one commit_ts."""
        groups = matches.select_groups(pc.field(Mutation.COMMIT_TS) == commit_ts)
        here = self._wanted & (ds.field(Mutation.COMMIT_TS) == commit_ts)
        chunks: list[pa.Array] = self._read_columns(groups, [Mutation.SEQ], here)[Mutation.SEQ].chunks
        return chunks

    def read(self, matches: _Matches, since: int, more: ds.Expression) -> pa.Table:
        """The matches above `since` that also satisfy `more`."""
        groups = matches.select_groups(pc.field(Mutation.COMMIT_TS) > since)
        return self._read_columns(groups, list(CHANGE_COLUMNS), self._wanted & more)

    def _select_groups(self, files: Sequence[_File]) -> list[ds.Fragment]:
        """The row groups whose statistics do not exclude matches."""
        with name_damage(self._path):
            parts = [file.fragment for file in files]
            if is_remote(self._path):
                parts = hold_whole(self._path, parts, {file.fragment.path: file.size for file in files})
            return [group for part in parts for group in part.split_by_row_group(self._wanted, self._schema)]

    def _read_column(self, groups: Sequence[ds.Fragment], column: str) -> pa.Table:
        """`column` of the matches, with the index of their row group; no image is read."""
        return self._read_columns(groups, [column, _PLACE], self._wanted)

    def _read_columns(self, groups: Sequence[ds.Fragment], columns: list[str], wanted: ds.Expression) -> pa.Table:
        if not groups:
            kinds = [(name, pa.int32() if name == _PLACE else self._schema.field(name).type) for name in columns]
            return pa.schema(kinds).empty_table()
        together = ds.FileSystemDataset(list(groups), self._schema, groups[0].format, groups[0].filesystem)
        with name_damage(self._path):
            return together.to_table(columns=columns, filter=wanted)


@dataclass(frozen=True)
class _Matches:
    """The commit_ts of matches in the row groups `groups`, each with the index of its group."""

    groups: Sequence[ds.Fragment]
    table: pa.Table

    def select_groups(self, which: pc.Expression) -> list[ds.Fragment]:
        """The groups with matches that satisfy `which`."""
        return [self.groups[number] for number in sorted(self.table.filter(which).column(_PLACE).unique().to_pylist())]


class _Search:
    """Searches the newest files first. It reads only commit_ts, and then the images that are needed."""

    def __init__(self, paths: LakePaths, wanted: ds.Expression) -> None:
        self._query = _Query(paths, wanted)
        self._matches: list[_Matches] = []

    def search_down(self, lo: int, hi: int, count: int, budget: TimeBudget) -> tuple[int, bool]:
        """Find about `count` matches. Returns (since, late): all matches above `since` are found; `lo`: all at all."""
        files = self._query.files
        while files:
            part, files = files[:_FILES_AT_ONCE], files[_FILES_AT_ONCE:]
            self._matches.append(self._query.find_matches(part))
            # Changes at or below this commit_ts may continue in the remaining files: leave them to the next answer.
            reached = files[0].most if files else lo
            moments = self._list_matched_ts(reached)
            if len(moments) > count or (files and len(moments) == count):
                return moments[-count].as_py() - 1, False
            # While the remaining files reach above `hi`, no commit_ts to resume from is known.
            if budget.spent and files and reached < hi:
                return reached, True
        return lo, False

    def count(self, since: int) -> int:
        """The number of found matches above `since`."""
        return len(self._list_matched_ts(since))

    def read_above(self, since: int, most: int) -> tuple[list[RowVersion], int]:
        """At most `most` matches above `since` in the total order, and how many of the oldest commit_ts are left."""
        moments = self._list_matched_ts(since)
        more = ds.field(Mutation.COMMIT_TS) > since
        if len(moments) > most:
            oldest = moments[0].as_py()
            numbers = pa.concat_arrays(
                [chunk for matches in self._matches for chunk in self._query.read_numbers(matches, oldest)]
            )
            numbers = numbers.take(pc.array_sort_indices(numbers))
            last = numbers[len(numbers) - (len(moments) - most) - 1].as_py()
            more &= (ds.field(Mutation.COMMIT_TS) > oldest) | (ds.field(Mutation.SEQ) <= last)
        changes = build_row_versions(self._query.read(matches, since, more) for matches in self._matches)
        return changes, len(moments) - len(changes)

    def read_tables_above(self, since: int) -> pa.Table:
        """All matches above `since`, in any order."""
        more = ds.field(Mutation.COMMIT_TS) > since
        tables = [self._query.read(matches, since, more) for matches in self._matches]
        return pa.concat_tables(tables) if tables else MUTATION.build_arrow_schema().empty_table()

    def _list_matched_ts(self, since: int) -> pa.Array:
        """The commit_ts of the matches above `since`, ascending."""
        parts = [
            matches.table.filter(pc.field(Mutation.COMMIT_TS) > since).column(Mutation.COMMIT_TS).chunks
            for matches in self._matches
        ]
        moments = pa.chunked_array([chunk for part in parts for chunk in part], pa.int64()).combine_chunks()
        return moments.take(pc.array_sort_indices(moments))
