"""Lists the rows of a lake table's window as parts for tasks: files, or row groups of large ones, of similar size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from binlake.base.lakecolumns import History, OfSegment
from binlake.lake.damage import name_damaged_file
from binlake.lake.opentable import list_file_uris
from binlake.lake.parts import TablePart
from binlake.lake.paths import LakePaths
from binlake.lake.store import read_metadata
from binlake.lake.tables import LakeTable
from binlake.spark_jobs.engine.rows import FileRows

MOST_PARTS = 128
"""Most parts of a window. With more bytes, each part grows."""
_Group = tuple[str, int, int]
"""File, number of the row group, bytes."""


def list_history_rows(paths: LakePaths, table: LakeTable, lo: int, hi: int, task_bytes: int) -> list[FileRows]:
    """The rows of a history table with lo < commit_ts <= hi, in parts of about `task_bytes`. Raises LostRange."""
    predicate = f"{History.COMMIT_TS} > {lo} AND {History.COMMIT_TS} <= {hi}"
    groups = [group for file in _list_files(paths, table, predicate) for group in _list_groups(file, lo, hi)]
    return _cut_into_parts(groups, task_bytes, (lo, hi))


def list_window_rows(paths: LakePaths, table: LakeTable, window: str, task_bytes: int) -> list[FileRows]:
    """The rows of a window in a table partitioned by window, in parts of about `task_bytes`. Raises LostRange."""
    files = _list_files(paths, table, f"{OfSegment.WINDOW} = '{window}'")
    return _cut_into_parts([group for file in files for group in _list_groups(file)], task_bytes, None)


def list_written_rows(folder: str, parts: Sequence[TablePart], size: int | None = None) -> list[FileRows]:
    """The rows of files that tasks wrote, one part for each file; `size`: bytes of all rows uncompressed, if known."""
    count = max(1, sum(part.rows for part in parts))
    sizes = [part.size if size is None else size * part.rows // count for part in parts]
    return [FileRows(((f"{folder}/{part.path}", ()),), own) for part, own in zip(parts, sizes, strict=True)]


def _list_files(paths: LakePaths, table: LakeTable, predicate: str) -> list[str]:
    return sorted(map(unquote, list_file_uris(paths.locate_table(table.name), predicate)))


def _list_groups(file: str, lo: int | None = None, hi: int | None = None) -> Iterator[_Group]:
    """The row groups of `file` that may have rows with lo < commit_ts <= hi."""
    with name_damaged_file(file):
        metadata = read_metadata(file)
    column = metadata.schema.names.index(History.COMMIT_TS) if lo is not None else -1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        known = group.column(column).statistics if column >= 0 else None
        if known is None or not known.has_min_max or lo is None or hi is None or (known.max > lo and known.min <= hi):
            yield file, number, group.total_byte_size


def _cut_into_parts(groups: list[_Group], task_bytes: int, within: tuple[int, int] | None) -> list[FileRows]:
    most = max(task_bytes, -(-sum(size for _, _, size in groups) // MOST_PARTS))
    parts: list[FileRows] = []
    pending: list[_Group] = []
    for group in groups:
        pending.append(group)
        if sum(size for _, _, size in pending) >= most:
            parts.append(_build_part(pending, within))
            pending = []
    return parts + ([_build_part(pending, within)] if pending else [])


def _build_part(groups: list[_Group], within: tuple[int, int] | None) -> FileRows:
    numbers: dict[str, list[int]] = {}
    for file, number, _ in groups:
        numbers.setdefault(file, []).append(number)
    files = tuple((file, tuple(own)) for file, own in numbers.items())
    return FileRows(files, sum(size for _, _, size in groups), within)
