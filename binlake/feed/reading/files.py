"""Reads the files of a feed up to its checkpoint: each table in the order of its changes; binlog files in order.

A binlog file is read as one event for each row change or DDL.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import fastavro

from binlake.base.filestore import StoredFiles
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
from binlake.feed.reading.csvfile import decode_csv_file
from binlake.feed.reading.decoders import build_row_event
from binlake.feed.reading.events import FeedRecord, MessageEvent
from binlake.feed.reading.jsonprotocols import decode_canal_json

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
