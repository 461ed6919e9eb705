"""Reads the files of a feed up to its checkpoint: each table in the order of its changes; binlog files in order.

A binlog file is read as one event for each row change or DDL. In a CSV file, quoting distinguishes a text from a number
and from NULL.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import fastavro

from binlake.binlogfile.framing import build_damage_error
from binlake.binlogfile.reading import (
    DELETE,
    INSERT,
    UPDATE,
    BinlogDdl,
    BinlogRow,
    FilePosition,
    decode_value,
    read_items,
)
from binlake.common.filestore import StoredFiles
from binlake.config.protocols import AvroOptions, CsvOptions, Options, PbOptions
from binlake.errors import Permanent, WireError
from binlake.feed.files.layout import (
    DataFile,
    build_index_path,
    build_table_folder,
    parse_data_path,
    parse_index_number,
)
from binlake.feed.files.publisher import read_checkpoint
from binlake.feed.reading.decoders import build_row_event, decode_canal_json
from binlake.feed.reading.events import FeedRecord, MessageEvent

_CSV_OPS = {"I": "c", "U": "u", "D": "d"}


@dataclass(frozen=True)
class CsvLine:
    """One line: operation, table, schema, optional fields, and the values as texts; NULL is None."""

    op: str
    table: str
    db: str
    commit_ts: int | None
    is_update: bool
    values: tuple[str | None, ...]


def decode_csv_file(path: str, content: bytes, columns: Sequence[str], options: CsvOptions) -> Iterator[MessageEvent]:
    """The events of a file whose rows have `columns`. Raises WireError.

    An update with its old row has two lines and is one event.
    """
    old: MessageEvent | None = None
    for number, fields in enumerate(_read_lines(content.decode("utf-8"), options, path)):
        line = _parse_line(f"{path}:{number}", fields, options)
        if len(line.values) != len(columns):
            raise WireError(
                f"a line of CSV has {len(line.values)} values, but the table has {len(columns)} columns",
                where={"at": f"{path}:{number}"},
                hint=_HINT,
            )
        row = dict(zip(columns, line.values, strict=True))
        event = MessageEvent(f"{path}:{number}", line.commit_ts, line.db, line.table, _CSV_OPS[line.op], value=row)
        if line.is_update and line.op == "D":
            old = event
        elif line.is_update and old is not None:
            yield replace(event, op="u", before=old.value)
            old = None
        else:
            yield event


def _parse_line(place: str, fields: list[str | None], options: CsvOptions) -> CsvLine:
    left = iter(fields)
    try:
        op, table, db = (str(next(left)) for _ in range(3))
        commit_ts = int(str(next(left))) if options.commit_ts else None
        is_update = next(left) == "true" if options.old_value else False
    except (StopIteration, ValueError, RuntimeError) as error:
        raise WireError("a line of CSV lacks its first values", where={"at": place}, hint=_HINT) from error
    if op not in _CSV_OPS:
        raise WireError(f"a line of CSV begins with {op!r}, not with I, U or D", where={"at": place}, hint=_HINT)
    return CsvLine(op, table, db, commit_ts, is_update, tuple(left))


def _read_lines(text: str, options: CsvOptions, path: str) -> Iterator[list[str | None]]:
    reader = _Reader(text, options)
    while reader.at < len(text):
        try:
            yield list(reader.read_line())
        except ValueError as error:
            raise WireError(
                f"CSV cannot be read: {error}", where={"file": path, "byte": reader.at}, hint=_HINT
            ) from error


class _Reader:
    """Reads lines from a text. `at`: the start of the next line. Raises ValueError."""

    def __init__(self, text: str, options: CsvOptions) -> None:
        self._text, self._options, self.at = text, options, 0
        self._ends = (options.delimiter, options.terminator)

    def read_line(self) -> Iterator[str | None]:
        """The values of the next line; NULL is None."""
        yield self._read_value()
        while self._skip_if(self._options.delimiter):
            yield self._read_value()
        if not self._skip_if(self._options.terminator):
            raise ValueError("a line does not end where it should")

    def _read_value(self) -> str | None:
        options = self._options
        if options.quote and self._skip_if(options.quote):
            return self._read_quoted(options.quote)
        if self._text.startswith(options.null, self.at) and self._text.startswith(
            self._ends, self.at + len(options.null)
        ):
            self.at += len(options.null)
            return None
        signs = []
        while self.at < len(self._text) and not self._text.startswith(self._ends, self.at):
            is_escaped = not options.quote and self._skip_if("\\")
            sign = self._text[self.at : self.at + 1]
            signs.append(_ESCAPES.get(sign, sign) if is_escaped else sign)
            self.at += 1
        return "".join(signs)

    def _read_quoted(self, quote: str) -> str:
        parts = []
        while True:
            end = self._text.find(quote, self.at)
            if end < 0:
                raise ValueError("a quote is not closed")
            parts.append(self._text[self.at : end])
            self.at = end + 1
            if not self._skip_if(quote):
                return quote.join(parts)

    def _skip_if(self, sign: str) -> bool:
        matches = self._text.startswith(sign, self.at)
        self.at += len(sign) if matches else 0
        return matches


_ESCAPES = {"r": "\r", "n": "\n"}
_HINT = "the feed's section has delimiter, quote and columns: read with --replication and --feed"


_OPS = {INSERT: "c", UPDATE: "u", DELETE: "d"}


def read_binlog_files(store: StoredFiles) -> Iterator[MessageEvent]:
    """All events of the folder, in commit order. Raises Permanent, Transient."""
    for item in read_items(store):
        place = f"{item.place.file}@{item.place.offset}"
        if isinstance(item, BinlogDdl):
            yield MessageEvent(place, item.commit_ts, item.db, "", "ddl", message={"sql": item.sql})
        else:
            for event in item.events:
                yield _build_row_event(place, item.commit_ts, item.place, event)


def _build_row_event(place: str, commit_ts: int, position: FilePosition, event: BinlogRow) -> MessageEvent:
    try:
        row = {column.name: decode_value(column, column.value) for column in event.columns}
        changed: dict[str, Any] = {c.name: decode_value(c, c.changed) for c in event.columns if c.changed is not None}
    except ValueError as error:
        raise build_damage_error(str(error), position.file, position.offset) from error
    update = event.kind == UPDATE
    return MessageEvent(place, commit_ts, event.db, event.table, _OPS[event.kind], None, changed if update else row,
                        row if update else None)  # fmt: skip


Columns = Callable[[str, str, int], list[str]]
"""(db, table, version) -> the names of the table's columns in this version."""
Wanted = Callable[[str, str], bool]
"""Tells whether the files of (db, table) are read."""


def read_files(store: StoredFiles, options: Options, is_wanted: Wanted) -> Iterator[MessageEvent]:
    """The events of the wanted tables. `options`: those of the protocol. Raises WireError, Permanent, Transient."""
    if isinstance(options, PbOptions):
        yield from read_binlog_files(store)
        return
    checkpoint = read_checkpoint(store)
    if checkpoint is None:
        raise Permanent(
            "the folder has no file `metadata`: no window of a feed is complete in it",
            where={"folder": store.shown},
            hint="check the folder in the URI",
        )
    columns = cache(partial(_read_columns, store))
    for file in _list_indexed_files(store, is_wanted):
        content = store.get(file.path) or b""
        for event in _decode_events(file, content, options, columns):
            # Later changes belong to an incomplete window.
            if event.commit_ts is None or event.commit_ts <= checkpoint:
                yield event


def _list_indexed_files(store: StoredFiles, is_wanted: Wanted) -> list[DataFile]:
    """The files up to the number in their folder's index, in order."""
    files = [file for path in store.list("") if (file := parse_data_path(path)) and is_wanted(file.db, file.table)]
    last = {file.folder: 0 for file in files}
    last = {folder: parse_index_number(store.get(build_index_path(folder)), folder) for folder in last}
    indexed = [file for file in files if file.number <= last[file.folder]]
    return sorted(indexed, key=lambda file: (file.db, file.table, file.version, file.date, file.number))


def _decode_events(file: DataFile, content: bytes, options: Options, columns: Columns) -> Iterator[MessageEvent]:
    match options:
        case AvroOptions():
            return _decode_avro(file, content)
        case CsvOptions():
            return decode_csv_file(file.path, content, columns(file.db, file.table, file.version), options)
        case _:
            return _decode_lines(file, content)


def _read_columns(store: StoredFiles, db: str, table: str, version: int) -> list[str]:
    """The columns of a table version. Raises Permanent if its schema file is missing."""
    folder = f"{build_table_folder(db, table)}/meta"
    for path in store.list(folder):
        if path.startswith(f"{folder}/schema_{version}_"):
            return [column["ColumnName"] for column in json.loads(store.get(path) or b"{}")["TableColumns"]]
    raise Permanent(
        "the definition of a table's version is missing",
        where={"folder": folder, "version": version},
        hint="csv cannot be read without it: restore the file",
    )


def _decode_avro(file: DataFile, content: bytes) -> Iterator[MessageEvent]:
    try:
        reader = fastavro.reader(io.BytesIO(content))
        schema: Any = reader.writer_schema
        key = next(field["type"] for field in schema["fields"] if field["name"] == "key")
        for number, record in enumerate(reader):
            row: Any = record
            event = build_row_event(f"{file.path}:{number}", key, row["key"], row["value"], row["commit_ts"])
            # The path has the original names; Avro's names have only allowed characters.
            yield replace(event, db=file.db, table=file.table)
    except (ValueError, EOFError, KeyError, StopIteration) as error:
        raise WireError(f"a file is not an Avro file of a feed: {error}", where={"file": file.path}) from error


def _decode_lines(file: DataFile, content: bytes) -> Iterator[MessageEvent]:
    for number, line in enumerate(content.splitlines()):
        yield from decode_canal_json(FeedRecord(f"{file.path}:{number}", None, line))
