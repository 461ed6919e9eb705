"""List and verify a folder of binlog files: every byte is read, nothing is changed.

Rule: no fault hides another. A damaged file is reported with its first fault, and the following files are still read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from binlake.binlogfile.folder import (
    BinlogFile,
    BinlogIndex,
    IndexedFile,
    compute_checksum,
    read_index,
    select_binlog_files,
)
from binlake.binlogfile.framing import DamagedFile
from binlake.binlogfile.reading import Item, parse_item, read_file_records, read_first_commit_ts, require_files
from binlake.common.filestore import StoredFiles
from binlake.errors import Permanent

See = Callable[[Item], None]
"""Called with every item that is read, in the order of the files."""
_PIECE = 4 << 20


@dataclass
class FileReport:
    """A file: its `first` and `last` commit_ts and number of `records` (None: unknown), its size and its problems."""

    name: str
    first: int | None = None
    last: int | None = None
    records: int | None = None
    size: int | None = None
    problems: list[str] = field(default_factory=list)


@dataclass
class FolderReport:
    """A folder. `index`: the one that Binlake wrote, None for a drainer's files. `problems`: of the folder as a
    whole."""

    index: BinlogIndex | None
    files: list[FileReport]
    problems: list[str] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """True if there are no problems."""
        return not self.problems and not any(file.problems for file in self.files)


def list_files(store: StoredFiles) -> FolderReport:
    """List files by names and index; without an index, read the first record of each. Raises Permanent, Transient."""
    index = read_index(store)
    if index is not None:
        return FolderReport(index, [_report_of_index(file) for file in index.files])
    files = select_binlog_files(store.list(""))
    require_files(store, index, files)
    reports = [FileReport(file.name, read_first_commit_ts(store, file)) for file in files]
    return FolderReport(None, reports, _find_gaps(files))


def verify_files(store: StoredFiles, see: See | None = None) -> FolderReport:
    """Read all files, check all checksums, and compare with the index. Raises Permanent if the index is damaged,
    Transient."""
    index = read_index(store)
    files_found = select_binlog_files(store.list(""))
    require_files(store, index, files_found)
    expected = {file.name: file for file in index.files} if index is not None else {}
    files = sorted({*files_found, *(file.file for file in expected.values())})
    wanted = [file for file in files if index is None or file.name in expected]
    report = FolderReport(index, [], [*_find_gaps(wanted), *_find_unlisted_files(files_found, expected, index)])
    reached: int | None = None
    for file in wanted:
        checked = _verify_file(store, file, expected.get(file.name), see)
        if index is not None and reached is not None and checked.first is not None and checked.first < reached:
            checked.problems.append(f"it begins at {checked.first}, but the previous file ends at {reached}")
        reached = reached if checked.last is None else checked.last
        report.files.append(checked)
    return report


def _verify_file(store: StoredFiles, file: BinlogFile, indexed: IndexedFile | None, see: See | None) -> FileReport:
    report = FileReport(file.name, records=0)
    try:
        if indexed is not None:
            _require_crc(store, indexed)
        for record in read_file_records(store, file, indexed=indexed):
            item = parse_item(record, file.name)
            _add_item(report, item, indexed is not None)
            if see is not None:
                see(item)
    except (DamagedFile, Permanent) as error:
        offset = error.where.get("offset")
        report.problems.append(error.message + (f" at byte {offset}" if offset is not None else ""))
        return report
    report.problems += [] if indexed is None else _list_differences(report, indexed)
    report.size = None if indexed is None else indexed.size
    return report


def _add_item(report: FileReport, item: Item, in_order: bool) -> None:
    if in_order and report.last is not None and item.commit_ts < report.last:
        report.problems.append(f"commit_ts {item.commit_ts} comes after {report.last} at byte {item.place.offset}")
    report.first = item.commit_ts if report.first is None else report.first
    # After a kill, a drainer writes some records again.
    report.last = max(item.commit_ts, report.last or 0)
    report.records = (report.records or 0) + 1


def _list_differences(report: FileReport, indexed: IndexedFile) -> list[str]:
    return [
        f"{what} is {actual}, but the index says {expected}"
        for what, actual, expected in (
            ("its first commit_ts", report.first, indexed.first),
            ("its last commit_ts", report.last, indexed.last),
            ("the number of its records", report.records, indexed.records),
        )
        if actual != expected
    ]


def _require_crc(store: StoredFiles, indexed: IndexedFile) -> None:
    """Check size and checksum of the file. Raises Permanent."""
    crc, left = 0, indexed.size
    with store.open(indexed.name) as stream:
        while left and (piece := stream.read(min(left, _PIECE))):
            crc, left = compute_checksum(piece, crc), left - len(piece)
    if left:
        raise Permanent(f"it has {indexed.size - left} bytes, but the index says {indexed.size}")
    if crc != indexed.crc:
        # If the damage is in a record, the record's checksum shows in which one.
        for _ in read_file_records(store, indexed.file, indexed=indexed):
            pass
        raise Permanent("its bytes do not match the checksum in the index")


def _report_of_index(file: IndexedFile) -> FileReport:
    return FileReport(file.name, file.first, file.last, file.records, file.size)


def _find_gaps(files: Sequence[BinlogFile]) -> list[str]:
    problems = []
    for before, file in pairwise(files):
        if file.index == before.index:
            problems.append(f"{before.name} and {file.name} have the same number")
        elif file.index > before.index + 1:
            problems.append(f"files {before.index + 1} to {file.index - 1} are missing, after {before.name}")
    return problems


def _find_unlisted_files(
    files: Iterable[BinlogFile], expected: dict[str, IndexedFile], index: BinlogIndex | None
) -> list[str]:
    """Find files that conflict with the index. Files after its end belong to a window that is being written."""
    if index is None:
        return []
    names_by_index = {file.file.index: name for name, file in expected.items()}
    return [
        f"{file.name} has the number of {names_by_index[file.index]}, which Binlake wrote"
        for file in files
        if file.index in names_by_index and file.name not in expected
    ]
