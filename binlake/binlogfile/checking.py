"""What a folder of binlog files holds, and all that is wrong in it: every byte is read, nothing is changed.

Rule: one fault hides no other: a damaged file is reported with its first fault, and the files behind it are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from binlake.base.filestore import Store
from binlake.binlogfile.framing import DamagedFile
from binlake.binlogfile.index import Index, IndexedFile, checksum, read_index
from binlake.binlogfile.names import BinlogFile, files_among
from binlake.binlogfile.reading import Item, file_records, first_commit_ts, parse_item, require_files
from binlake.errors import Permanent

See = Callable[[Item], None]
"""Gets every item that is read, in the order of the files."""
_PIECE = 4 << 20


@dataclass
class FileReport:
    """A file: `first`, `last` commit_ts and `records` (None: not known), its size, what is wrong with it."""

    name: str
    first: int | None = None
    last: int | None = None
    records: int | None = None
    size: int | None = None
    problems: list[str] = field(default_factory=list)


@dataclass
class FolderReport:
    """`index`: Binlake's own; None for files of a drainer. `problems`: of the folder as a whole."""

    index: Index | None
    files: list[FileReport]
    problems: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Nothing is wrong."""
        return not self.problems and not any(file.problems for file in self.files)


def list_files(store: Store) -> FolderReport:
    """What names and index say; without an index the first record of each file is read. Raises Permanent, Transient."""
    index = read_index(store)
    if index is not None:
        return FolderReport(index, [_indexed(file) for file in index.files])
    files = files_among(store.list(""))
    require_files(store, index, files)
    reports = [FileReport(file.name, first_commit_ts(store, file)) for file in files]
    return FolderReport(None, reports, _gaps(files))


def verify_files(store: Store, see: See | None = None) -> FolderReport:
    """Read all files, checksums included, and compare with the index. Raises Permanent for its damage, Transient."""
    index = read_index(store)
    there = files_among(store.list(""))
    require_files(store, index, there)
    expected = {file.name: file for file in index.files} if index is not None else {}
    files = sorted({*there, *(file.file for file in expected.values())})
    own = [file for file in files if index is None or file.name in expected]
    report = FolderReport(index, [], [*_gaps(own), *_find_unlisted_files(there, expected, index)])
    reached: int | None = None
    for file in own:
        one = _verify_file(store, file, expected.get(file.name), see)
        if index is not None and reached is not None and one.first is not None and one.first < reached:
            one.problems.append(f"it begins at {one.first}, the file before it ends at {reached}")
        reached = reached if one.last is None else one.last
        report.files.append(one)
    return report


def _verify_file(store: Store, file: BinlogFile, indexed: IndexedFile | None, see: See | None) -> FileReport:
    report = FileReport(file.name, records=0)
    try:
        if indexed is not None:
            _require_crc(store, indexed)
        for record in file_records(store, file, indexed=indexed):
            item = parse_item(record, file.name)
            _add(report, item, indexed is not None)
            if see is not None:
                see(item)
    except (DamagedFile, Permanent) as error:
        offset = error.where.get("offset")
        report.problems.append(error.message + (f" at byte {offset}" if offset is not None else ""))
        return report
    report.problems += [] if indexed is None else _differences(report, indexed)
    report.size = None if indexed is None else indexed.size
    return report


def _add(report: FileReport, item: Item, in_order: bool) -> None:
    if in_order and report.last is not None and item.commit_ts < report.last:
        report.problems.append(f"commit_ts {item.commit_ts} comes after {report.last} at byte {item.place.offset}")
    report.first = item.commit_ts if report.first is None else report.first
    # A drainer that was killed writes again what it had written.
    report.last = max(item.commit_ts, report.last or 0)
    report.records = (report.records or 0) + 1


def _differences(report: FileReport, indexed: IndexedFile) -> list[str]:
    return [
        f"{what} is {found}, the index says {said}"
        for what, found, said in (
            ("its first commit_ts", report.first, indexed.first),
            ("its last commit_ts", report.last, indexed.last),
            ("the number of its records", report.records, indexed.records),
        )
        if found != said
    ]


def _require_crc(store: Store, indexed: IndexedFile) -> None:
    """Raises Permanent."""
    crc, left = 0, indexed.size
    with store.open(indexed.name) as stream:
        while left and (piece := stream.read(min(left, _PIECE))):
            crc, left = checksum(piece, crc), left - len(piece)
    if left:
        raise Permanent(f"it has {indexed.size - left} bytes, the index says {indexed.size}")
    if crc != indexed.crc:
        # Which record it is, if it is in one, its own checksum tells.
        for _ in file_records(store, indexed.file, indexed=indexed):
            pass
        raise Permanent("its bytes are not those that the index has the checksum of")


def _indexed(file: IndexedFile) -> FileReport:
    return FileReport(file.name, file.first, file.last, file.records, file.size)


def _gaps(files: Sequence[BinlogFile]) -> list[str]:
    problems = []
    for before, file in pairwise(files):
        if file.index == before.index:
            problems.append(f"{before.name} and {file.name} have one index")
        elif file.index > before.index + 1:
            problems.append(f"files {before.index + 1} to {file.index - 1} are missing, after {before.name}")
    return problems


def _find_unlisted_files(
    there: Iterable[BinlogFile], expected: dict[str, IndexedFile], index: Index | None
) -> list[str]:
    """Files that claim a place of the index. What lies behind its end is a window that is being written."""
    if index is None:
        return []
    own = {file.file.index: name for name, file in expected.items()}
    return [
        f"{file.name} has the index of {own[file.index]}, which is the one that Binlake wrote"
        for file in there
        if file.index in own and file.name not in expected
    ]
