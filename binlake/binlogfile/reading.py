"""Read transactions and DDL of binlog files, in commit order, from a commit_ts on.

Rule: everything is verified while it is read: no file number is missing or duplicate, all checksums match, the order is
commit order, and if Binlake wrote an index, the files have the size that it says. The original's files may repeat
records that a drainer wrote before its restart; there, a transaction at or before the last one is skipped.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import structlog
from google.protobuf.message import DecodeError

from binlake.binlogfile.folder import (
    BinlogFile,
    BinlogIndex,
    IndexedFile,
    read_index,
    require_sequence,
    select_binlog_files,
)
from binlake.binlogfile.framing import FramedPayload, build_damage_error, read_records
from binlake.common.filestore import StoredFiles
from binlake.errors import Permanent
from binlake.rows.codec import datum as d
from binlake.rows.codec.datum import read_decimal
from binlake.rows.codec.jsons import read_json
from binlake.rows.codec.values import read_plain_value
from binlake.wire import pb_binlog_pb2 as pb

log = structlog.get_logger(__name__)

INSERT, UPDATE, DELETE = "insert", "update", "delete"
_KINDS = {pb.Insert: INSERT, pb.Update: UPDATE, pb.Delete: DELETE}
_USE = re.compile(r"\s*use\s+(`(?:[^`]|``)+`|[^;`\s]+)\s*;\s*", re.IGNORECASE)
_BINARY = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit"})
_DATUM_ERRORS = (IndexError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The position of a record: its file and byte offset."""

    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class BinlogColumn:
    """A value of a row. `tp`: MySQL's number of the type; `value`, `changed`: datums of TiDB's codec.

    Temporal types, DECIMAL and JSON are stored as texts (flag 2), ENUM, SET and BIT as numbers (BIT as bytes by older
    drainers, and by Binlake before it wrote numbers). A drainer writes a TIMESTAMP in the zone of its machine, which is
    not in the file; Binlake writes it in the feed's zone. `changed`: for an update the value after it; None for other
    kinds.
    """

    name: str
    tp: int
    mysql_type: str
    value: bytes
    changed: bytes | None


@dataclass(frozen=True, slots=True)
class BinlogRow:
    """A row change of `db`.`table`; `kind`: INSERT, UPDATE or DELETE."""

    db: str
    table: str
    kind: str
    columns: tuple[BinlogColumn, ...]


@dataclass(frozen=True)
class BinlogTransaction:
    """A transaction; `message` is its protobuf message."""

    commit_ts: int
    place: FilePosition
    message: pb.Binlog

    @cached_property
    def events(self) -> tuple[BinlogRow, ...]:
        """The row changes, in order. Raises DamagedFile."""
        try:
            return tuple(_parse_event(event) for event in self.message.dml_data.events)
        except (DecodeError, KeyError, IndexError) as error:
            raise build_damage_error(f"a row cannot be read: {error!r}", self.place.file, self.place.offset) from error


@dataclass(frozen=True)
class BinlogDdl:
    """A DDL: `sql` without the leading `use`; `db`: the database of that `use` (empty without one: CREATE DATABASE)."""

    commit_ts: int
    place: FilePosition
    db: str
    sql: str


Item = BinlogTransaction | BinlogDdl


def read_items(
    store: StoredFiles, first: int = 0, last: int | None = None, *, torn_end: bool = False, whole_range: bool = False
) -> Iterator[Item]:
    """The transactions and DDL of a folder that were committed from `first` to `last`, inclusive (None: to the end).

    `torn_end`: see `read_records`; for the last file of a folder without an index. `whole_range`: the folder must have
    the whole range, as far as this can be checked. Raises DamagedFile and Permanent for damaged, truncated, missing or
    duplicate files, Transient.
    """
    reader = _Reader(store, torn_end)
    if whole_range:
        reader.require_range(first, last)
    return reader.iterate_items(first, last)


def decode_datum(datum: bytes) -> int | float | bytes | str | None:
    """The value of a datum; text for DECIMAL and JSON (flags 6 and 10). Raises ValueError for a damaged datum."""
    try:
        if datum[0] == d.DECIMAL:
            # A file has the digits as they were written, independent of the column's scale.
            return read_decimal(datum, 1, datum[2])[0]
        return read_json(datum, 1)[0] if datum[0] == d.JSON else read_plain_value(datum, 0)[0]
    except _DATUM_ERRORS as error:
        raise ValueError(f"a datum of {len(datum)} bytes cannot be read: {error}") from error


def decode_value(column: BinlogColumn, datum: bytes) -> int | float | bytes | str | None:
    """The value of a column's datum: text, except for binary types. Raises ValueError for a damaged datum."""
    value = decode_datum(datum)
    if not isinstance(value, bytes) or column.mysql_type in _BINARY:
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        # TiDB allows bytes that are not UTF-8 in latin1 columns.
        return value


def read_file_records(
    store: StoredFiles, file: BinlogFile, *, indexed: IndexedFile | None = None, torn_end: bool = False
) -> Iterator[FramedPayload]:
    """The records of one file, up to the size in `indexed`. Raises DamagedFile, Permanent, Transient."""
    with store.open(file.name) as stream:
        source = stream if indexed is None else _limit_stream(stream, indexed)
        yield from read_records(source, file.name, file.compression, torn_end=torn_end)


def read_first_commit_ts(store: StoredFiles, file: BinlogFile) -> int | None:
    """The commit_ts with which a file begins; None for an empty file. Raises DamagedFile, Transient."""
    for record in read_file_records(store, file, torn_end=True):
        return parse_item(record, file.name).commit_ts
    return None


def require_files(store: StoredFiles, index: BinlogIndex | None, files: Sequence[BinlogFile]) -> None:
    """Raises Permanent for a folder without binlog files and without an index."""
    if index is None and not files:
        raise Permanent("there are no binlog files", where={"folder": store.shown}, hint="check the path of the folder")


def parse_item(record: FramedPayload, name: str) -> Item:
    """Parse a record of the file `name`. Raises DamagedFile."""
    place = FilePosition(name, record.offset)
    try:
        message = pb.Binlog.FromString(record.payload)
    except DecodeError as error:
        raise build_damage_error("a record is not a binlog", name, record.offset) from error
    if message.tp == pb.DML:
        return BinlogTransaction(message.commit_ts, place, message)
    text = message.ddl_query.decode("utf-8", "surrogateescape")
    use = _USE.match(text)
    sql = (text[use.end() :] if use else text).strip().rstrip(";").rstrip()
    return BinlogDdl(message.commit_ts, place, _unquote(use[1]) if use else "", sql)


def _unquote(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


class _Reader:
    def __init__(self, store: StoredFiles, torn_end: bool) -> None:
        index, files = read_index(store), select_binlog_files(store.list(""))
        self._store, self._torn_end = store, torn_end
        self._indexed = {} if index is None else {file.name: file for file in index.files}
        self._index, self._is_indexed = index, index is not None
        self._files = files if index is None else _list_indexed_files(index, files)
        require_files(store, index, files)

    def require_range(self, first: int, last: int | None) -> None:
        """Check that the folder has everything from `first` (0: its beginning) to `last`. Raises Permanent.

        Without an index, only the file numbers show whether the beginning is complete: the first file has number 0.
        """
        if self._index is not None:
            lo, hi = self._index.lo, self._index.hi
            if (first and first <= lo) or (last is not None and last > hi):
                raise _build_lacking_range_error(self._store, (first, last), f"{lo + 1}-{hi}")
        elif first and self._files[0].index:
            begin = self._find_first_ts(self._files[0])
            if begin is None or begin > first:
                raise _build_lacking_range_error(
                    self._store, (first, last), f"from {begin} on, in {self._files[0].name}"
                )

    def iterate_items(self, first: int, last: int | None) -> Iterator[Item]:
        """See `read_items`."""
        files = self._select_files(first)
        require_sequence(files, self._store.shown)
        before: tuple[int, bytes] | None = None
        for file in files:
            for record in self._read_records(file, files):
                item = parse_item(record, file.name)
                if before is not None and self._is_repeated(item, record, before):
                    continue
                before = item.commit_ts, record.payload
                if last is not None and item.commit_ts > last:
                    return
                if item.commit_ts >= first:
                    yield item

    def _read_records(self, file: BinlogFile, files: Sequence[BinlogFile]) -> Iterator[FramedPayload]:
        indexed, torn = self._indexed.get(file.name), self._torn_end and not self._is_indexed and file == files[-1]
        return read_file_records(self._store, file, indexed=indexed, torn_end=torn)

    def _is_repeated(self, item: Item, record: FramedPayload, before: tuple[int, bytes]) -> bool:
        """Whether the record repeats one that the original wrote before it was killed."""
        is_earlier = item.commit_ts < before[0]
        if is_earlier and self._is_indexed:
            raise build_damage_error(
                f"commit_ts {item.commit_ts} comes after {before[0]}", item.place.file, record.offset
            )
        if is_earlier or (item.commit_ts == before[0] and record.payload == before[1]):
            log.debug("binlog_repeated", file=item.place.file, offset=record.offset, commit_ts=str(item.commit_ts))
            return True
        return False

    def _select_files(self, first: int) -> list[BinlogFile]:
        """The files that may have commits from `first` on: all from the last file that begins before `first`."""
        for number in range(len(self._files) - 1, 0, -1):
            if (begin := self._find_first_ts(self._files[number])) is not None and begin < first:
                return self._files[number:]
        return self._files

    def _find_first_ts(self, file: BinlogFile) -> int | None:
        if file.name in self._indexed:
            return self._indexed[file.name].first
        return read_first_commit_ts(self._store, file)


def _list_indexed_files(index: BinlogIndex, files: Sequence[BinlogFile]) -> list[BinlogFile]:
    """The files of the index, and other files with the number of one of them: copies, or files of another writer."""
    indexed = [file.file for file in index.files]
    numbers, names = {file.index for file in indexed}, {file.name for file in indexed}
    return sorted([*indexed, *(file for file in files if file.index in numbers and file.name not in names)])


def _parse_event(event: pb.Event) -> BinlogRow:
    columns = tuple(_parse_column(pb.Column.FromString(raw), event.tp) for raw in event.row)
    return BinlogRow(event.schema_name, event.table_name, _KINDS[event.tp], columns)


def _parse_column(raw: pb.Column, kind: Any) -> BinlogColumn:
    changed = raw.changed_value if kind == pb.Update else None
    return BinlogColumn(raw.name, raw.tp[0], raw.mysql_type, raw.value, changed)


class _LimitedStream(io.RawIOBase):
    """The beginning of a stream, with as many bytes as the index says."""

    def __init__(self, stream: BinaryIO, indexed: IndexedFile) -> None:
        self._stream, self._indexed, self._left = stream, indexed, indexed.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._stream.read(min(len(buffer), self._left))
        if not data and self._left:
            at = self._indexed.size - self._left
            raise build_damage_error(
                f"it ends early: the index says {self._indexed.size} bytes", self._indexed.name, at
            )
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _limit_stream(stream: BinaryIO, indexed: IndexedFile) -> BinaryIO:
    return io.BufferedReader(_LimitedStream(stream, indexed), 1 << 20)


def _build_lacking_range_error(store: StoredFiles, wanted: tuple[int, int | None], held: str) -> Permanent:
    first, last = wanted
    return Permanent(
        "the binlog files do not contain the whole range",
        where={"folder": store.shown, "range": f"{first}-{'' if last is None else last}", "held": held},
        hint="choose a range inside, or use files with a longer retention",
    )
