"""Debezium as a format: JSON keys and values. Deletions have a value too, and no tombstone follows.

Rule: both times (`source.ts_ms`, `ts_ms`) are the commit time, so that a message is a pure function of its row.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from binlake import tso
from binlake.config.protocols import DebeziumOptions
from binlake.extras.protocols.debezium.schema import build_envelope_schema, build_key_schema, build_record_name
from binlake.extras.protocols.debezium.values import encode_values
from binlake.feed.bytecolumns import Part, join_parts
from binlake.feed.formats import DELETE, INSERT, UPDATE, Bodies, Changes, Event, Images, RowFormat, find_row_key
from binlake.feed.jsontext import encode_json, encode_numbers, encode_object
from binlake.rows.schema import ColumnInfo

WATERMARK = "m"
"""The `op` of the message at the end of a window."""


class DebeziumFormat(RowFormat):
    """The format Debezium with `options`."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options = options
        self.splits_moves = not options.raw_updates

    def encode(self, changes: Changes) -> Bodies:
        """As Format.encode: keys with the columns that identify a row, values with the row before and after."""
        table, columns, key = changes.table, changes.table.row_columns, find_row_key(changes.table)
        name = build_record_name(self._options.cluster, table)
        payload = self._encode_payload_head(
            table.db, table.name, encode_numbers(changes.commit_ts), _encode_millis(changes)
        )
        payload += [b',"op":', encode_json(changes.op)]
        if changes.op != UPDATE or self._options.old_values:
            payload += [
                b',"before":',
                *([b"null"] if changes.op == INSERT else _encode_row(columns, changes.select_before(columns))),
            ]
        payload += [
            b',"after":',
            *([b"null"] if changes.op == DELETE else _encode_row(columns, changes.select_after(columns))),
            b"}",
        ]
        values = self._wrap_with_schema(
            payload, build_envelope_schema(name, columns, extension=self._options.extension)
        )
        keys = self._wrap_with_schema(_encode_row(key, changes.select_last(key)), build_key_schema(name, key))
        constant = all(isinstance(part, bytes) for part in keys)
        keys_of_rows = pa.repeat(pa.scalar(b"".join(keys), pa.binary()), len(changes)) if constant else join_parts(keys)
        return Bodies(keys_of_rows, join_parts(values))

    def encode_watermark(self, ts: int, /) -> Event | None:
        """As Format.watermark: to all partitions, only with the extension."""
        if not self._options.extension:
            return None
        name, moment = f"{self._options.cluster}.watermark", b"%d" % tso.extract_physical(ts)
        payload = [*self._encode_payload_head("", "", [b"%d" % ts], [moment]), b',"op":', encode_json(WATERMARK), b"}"]
        value = self._wrap_with_schema(payload, build_envelope_schema(name, None, extension=True))
        key = self._wrap_with_schema([b"{}"], build_key_schema(name, ()))
        return Event(b"".join(key), b"".join(value), True)

    def _encode_payload_head(self, db: str, table: str, commit_ts: list[Part], millis: list[Part]) -> list[Part]:
        """The beginning of a payload: source, time and transaction."""
        cluster = encode_json(self._options.cluster)
        head: dict[str, Any] = {"snapshot": "false", "db": db, "table": table, "server_id": 0, "gtid": None,
                                "file": "", "pos": 0, "row": 0, "thread": 0, "query": None}  # fmt: skip
        return [
            b'{"source":{"version":"2.4.0.Final","connector":"TiCDC","name":', cluster, b',"ts_ms":', *millis, b",",
            encode_json(head)[1:-1], b',"commit_ts":', *commit_ts, b',"cluster_id":', cluster, b'},"ts_ms":', *millis,
            b',"transaction":null',
        ]  # fmt: skip

    def _wrap_with_schema(self, payload: list[Part], schema: dict[str, Any]) -> list[Part]:
        tail = b',"schema":' + encode_json(schema) if self._options.schemas else b""
        return [b'{"payload":', *payload, tail, b"}"]


def _encode_row(columns: tuple[ColumnInfo, ...], images: Images) -> list[Part]:
    return encode_object((column.name, encode_values(column, images[column.name])) for column in columns)


def _encode_millis(changes: Changes) -> list[Part]:
    return encode_numbers(pc.shift_right(changes.commit_ts, tso.LOGICAL_BITS))
