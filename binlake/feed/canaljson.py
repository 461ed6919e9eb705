"""Canal-JSON as TiCDC writes it: one JSON document per row change, all values as texts, no key.

Rule: parts that depend only on the table are built once. Only the values differ between rows, and the Java type of
large unsigned numbers. `ts`, in TiCDC the time of writing, is the commit time here, so that a message is a pure
function of its row.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from binlake import tso
from binlake.common.arrowcolumns import Part, decode_hex, join_parts
from binlake.config.protocols import CanalJsonOptions
from binlake.ddl.definitions import LandedDdl
from binlake.feed.encoding import (
    as_binary,
    compute_member_numbers,
    convert_images_to_zone,
    encode_json,
    encode_numbers,
    encode_object,
    encode_strings,
    escape_latin1,
    escape_texts,
    parse_bits,
    put_nulls,
    remove_exponents,
)
from binlake.feed.formats import (
    DELETE,
    INSERT,
    UPDATE,
    Bodies,
    Changes,
    FeedEvent,
    Images,
    RowFormat,
    choose_columns_to_send,
)
from binlake.rows.schema import Action, ColumnInfo
from binlake.rows.schema import mysqltypes as t

_TYPES = {INSERT: b"INSERT", UPDATE: b"UPDATE", DELETE: b"DELETE"}
WATERMARK = "TIDB_WATERMARK"

_JAVA = {t.TINY: -6, t.SHORT: 5, t.INT24: 4, t.LONG: 4, t.LONGLONG: -5, t.FLOAT: 7, t.DOUBLE: 8, t.NEWDECIMAL: 3,
         t.DATE: 91, t.NEWDATE: 91, t.DATETIME: 93, t.TIMESTAMP: 93, t.DURATION: 92, t.YEAR: 12, t.ENUM: 4, t.SET: -7,
         t.BIT: -7, t.JSON: 12}  # fmt: skip
_BLOB, _CLOB, _CHAR, _VARCHAR = 2004, 2005, 1, 12
_PROMOTED = {t.TINY: ((1 << 7) - 1, 5), t.SHORT: ((1 << 15) - 1, 4), t.LONG: ((1 << 31) - 1, -5),
             t.LONGLONG: ((1 << 63) - 1, 3)}  # fmt: skip
"""By type: the largest unsigned number with the type's usual Java type, and the Java type of larger numbers."""

_DDL_TYPES = {
    "CREATE": {Action.CREATE_TABLE, Action.CREATE_TABLES},
    "RENAME": {Action.RENAME_TABLE, Action.RENAME_TABLES},
    "CINDEX": {Action.ADD_INDEX, Action.ADD_FOREIGN_KEY, Action.ADD_PRIMARY_KEY},
    "DINDEX": {Action.DROP_INDEX, Action.DROP_FOREIGN_KEY, Action.DROP_PRIMARY_KEY},
    "ERASE": {Action.DROP_TABLE},
    "TRUNCATE": {Action.TRUNCATE_TABLE},
}
_OTHER_DDLS = {
    Action.CREATE_SCHEMA, Action.DROP_SCHEMA, Action.SHARD_ROW_ID, Action.CREATE_VIEW, Action.DROP_VIEW,
    Action.RECOVER_TABLE, Action.SCHEMA_CHARSET, Action.LOCK_TABLE, Action.UNLOCK_TABLE, Action.REPAIR_TABLE,
    Action.SET_TIFLASH_REPLICA, Action.TIFLASH_STATUS, Action.CREATE_SEQUENCE, Action.ALTER_SEQUENCE,
    Action.DROP_SEQUENCE, Action.AUTO_ID_CACHE, Action.REBASE_AUTO_RANDOM,
}  # fmt: skip


class CanalJsonFormat(RowFormat):
    """The format Canal-JSON with `options`."""

    def __init__(self, options: CanalJsonOptions) -> None:
        self._options = options
        self.splits_moves = not options.raw_updates

    def encode(self, changes: Changes) -> Bodies:
        """As Format.encode: values without keys."""
        table, op = changes.table, changes.op
        columns = choose_columns_to_send(changes, delete_keys_only=self._options.delete_keys_only)
        zone = self._options.time_zone
        texts = convert_images_to_zone(columns, changes.select_last(columns), zone)
        old = convert_images_to_zone(columns, changes.select_before(columns), zone) if op == UPDATE else None
        parts: list[Part] = [
            b'{"id":0,"database":', encode_json(table.db), b',"table":', encode_json(table.name),
            b',"pkNames":', encode_json(list(table.primary_key) or None), b',"isDdl":false,"type":"', _TYPES[op],
            b'","es":', *self._encode_times(changes), b',"sql":"","sqlType":', *_encode_java_types(columns, texts),
            b',"mysqlType":', encode_json({column.name: format_mysql_type(column) for column in columns}),
            b',"data":[', *_encode_row(columns, texts), b'],"old":',
        ]  # fmt: skip
        parts += [b"null"] if old is None else [b"[", *_encode_row(columns, old), b"]"]
        if self._options.extension:
            parts += [b',"_tidb":{"commitTs":', *encode_numbers(changes.commit_ts), b"}"]
        return Bodies(pa.nulls(len(changes), pa.binary()), join_parts([*parts, b"}"]))

    def encode_ddl(self, ddl: LandedDdl, /) -> FeedEvent | None:
        """As Format.encode_ddl: to the first partition, as TiCDC sends it."""
        fields = {
            "database": ddl.db,
            "table": ddl.table,
            "isDdl": True,
            "type": _choose_ddl_type(ddl.action),
            "sql": ddl.sql,
        }
        return self._encode_event(fields, ddl.commit_ts, "commitTs", everywhere=False)

    def encode_watermark(self, ts: int, /) -> FeedEvent | None:
        """As Format.watermark: to all partitions, only with the extension."""
        if not self._options.extension:
            return None
        return self._encode_event({"type": WATERMARK}, ts, "watermarkTs", everywhere=True)

    def _encode_event(self, fields: dict[str, Any], ts: int, name: str, *, everywhere: bool) -> FeedEvent:
        time_ms = tso.extract_physical(ts)
        message: dict[str, Any] = {
            "id": 0, "database": "", "table": "", "pkNames": None, "isDdl": False, "type": "",
            "es": time_ms, "ts": time_ms, "sql": "", "sqlType": None, "mysqlType": None,
            "data": None, "old": None,
        } | fields  # fmt: skip
        if self._options.extension:
            message["_tidb"] = {name: ts}
        return FeedEvent(None, encode_json(message), everywhere)

    def _encode_times(self, changes: Changes) -> list[Part]:
        moments = encode_numbers(pc.shift_right(changes.commit_ts, tso.LOGICAL_BITS))
        return [*moments, b',"ts":', *moments]


def format_mysql_type(column: ColumnInfo) -> str:
    """The type's name without lengths, such as `bigint unsigned`."""
    number = column.tp in t.INTEGERS or column.tp in (t.NEWDECIMAL, t.FLOAT, t.DOUBLE)
    words = [column.type_name]
    if number and column.unsigned:
        words.append("unsigned")
    if number and column.flag & t.FLAG_ZEROFILL:
        words.append("zerofill")
    return " ".join(words)


def choose_java_type(column: ColumnInfo) -> int:
    """The code of `java.sql.Types`; if it depends on the value, the one for small values."""
    if column.tp in _JAVA:
        return _JAVA[column.tp]
    if column.is_binary:
        return _BLOB
    return _CLOB if column.tp in t.BLOBS else _CHAR if column.tp == t.STRING else _VARCHAR


def _encode_java_types(columns: tuple[ColumnInfo, ...], images: Images) -> list[Part]:
    return encode_object((column.name, _encode_java_type(column, images[column.name])) for column in columns)


def _encode_java_type(column: ColumnInfo, texts: Any) -> list[Part]:
    plain = b"%d" % choose_java_type(column)
    if not column.unsigned or column.tp not in _PROMOTED:
        return [plain]
    most, larger = _PROMOTED[column.tp]
    large = pc.greater(pc.cast(texts, pa.uint64()), pa.scalar(most, pa.uint64()))
    if not pc.any(large).as_py():
        return [plain]
    return [pc.if_else(pc.fill_null(large, False), pa.scalar(b"%d" % larger), pa.scalar(plain))]


def _encode_row(columns: tuple[ColumnInfo, ...], images: Images) -> list[Part]:
    return encode_object((column.name, _encode_value(column, images[column.name])) for column in columns)


def _encode_value(column: ColumnInfo, texts: Any) -> list[Part]:
    """A value as a JSON text, whatever its type."""
    match column.tp:
        case t.ENUM | t.SET:
            return _quote_numbers(compute_member_numbers(column, texts))
        case t.BIT:
            return _quote_numbers(parse_bits(texts))
        case t.FLOAT | t.DOUBLE:
            return encode_strings(as_binary(remove_exponents(texts)))
        case _ if column.is_binary:
            return encode_strings(escape_latin1(decode_hex(texts)))
        case _ if column.tp in t.STRINGS or column.tp == t.JSON:
            return encode_strings(escape_texts(texts))
        case _:
            return encode_strings(as_binary(texts))


def _quote_numbers(numbers: Any) -> list[Part]:
    texts = as_binary(pc.cast(numbers, pa.string()))
    return put_nulls([b'"', texts, b'"'], texts)


def _choose_ddl_type(action: int) -> str:
    kind = next((kind for kind, actions in _DDL_TYPES.items() if action in actions), None)
    return kind or ("QUERY" if action in _OTHER_DDLS else "ALTER")
