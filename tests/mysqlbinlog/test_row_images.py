"""Prewrite values from row events: the changes of a transaction, their order, and what is refused by name."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from support.tabledefs import Json, col, table

from binlake.errors import SchemaError, SourceRefused, WireError
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.mysqlbinlog.rowimage.shape import derive_shape
from binlake.rows.codec import RowChange, decode_transaction
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.wire import binlog_pb2 as pb


class OneSchema:
    """The tables of a batch."""

    def __init__(self, *tables: TableDef) -> None:
        self._tables = {table.id: table for table in tables}

    def find_table(self, table_id: int) -> TableDef | None:
        """A table by its id."""
        return self._tables.get(table_id)

    def is_gone(self, _table_id: int) -> bool:
        """No table has been dropped."""
        return False


def _table(name: str = "t", table_id: int = 7) -> TableDef:
    return table(name, col("id", not_null=True), col("v", t.VARCHAR, flen=20), id=table_id)


def _map(name: str = "t", types: bytes = b"\x03\x0f", metadata: tuple[int, ...] = (0, 80)) -> TableMap:
    return TableMap(1, "d", name, types, metadata, (False,) * len(types))


def _image(number: int, text: bytes | None) -> bytes:
    letters = b"" if text is None else bytes((len(text),)) + text
    return bytes((0b10 if text is None else 0,)) + struct.pack("<i", number) + letters


def _insert(*rows: tuple[int, bytes | None], name: str = "t") -> RowsEvent:
    return RowsEvent(RowKind.INSERT, _map(name), b"", b"\x03", b"".join(_image(*row) for row in rows))


def _decoded(value: bytes, *tables: TableDef) -> list[RowChange]:
    payload = pb.Binlog(tp=pb.Commit, prewrite_value=value).SerializeToString()
    return list(decode_transaction(payload, 1, 1, OneSchema(*tables)))


def _ids(value: bytes) -> Iterable[int]:
    return [mutation.table_id for mutation in pb.PrewriteValue.FromString(value).mutations]


def test_kinds_of_changes_stay_in_order() -> None:
    definition = _table()
    update = RowsEvent(RowKind.UPDATE, _map(), b"\x03", b"\x03", _image(1, b"a") + _image(1, None))
    delete = RowsEvent(RowKind.DELETE, _map(), b"\x03", b"", _image(2, b"b"))
    [value] = encode_transactions(
        [[_insert((1, b"a"), (2, b"b")), update, delete, _insert((3, b""))]], lambda _: definition, 9
    )
    assert pb.PrewriteValue.FromString(value).schema_version == 9
    assert [(c.seq, c.op, c.before, c.after) for c in _decoded(value, definition)] == [
        (0, "insert", None, {"id": "1", "v": "a"}),
        (1, "insert", None, {"id": "2", "v": "b"}),
        (2, "update", {"id": "1", "v": "a"}, {"id": "1", "v": None}),
        (3, "delete", {"id": "2", "v": "b"}, None),
        (4, "insert", None, {"id": "3", "v": ""}),
    ]


def test_order_of_tables_is_preserved() -> None:
    tables = {"a": _table("a", 1), "b": _table("b", 2)}
    events = [_insert((1, b"x"), name=name) for name in "aabba"]
    [value] = encode_transactions([events], lambda seen: tables[seen.table], 1)
    assert list(_ids(value)) == [1, 2, 1]
    assert [c.table_id for c in _decoded(value, *tables.values())] == [1, 1, 2, 2, 1]


def test_excluded_tables_have_no_changes() -> None:
    tables = {"a": _table("a", 1), "b": None}
    batch = [[_insert((1, b"x"), name="b")], [], [_insert((1, b"x"), name=name) for name in "ab"]]
    nothing, empty, some = encode_transactions(batch, lambda seen: tables[seen.table], 1)
    assert (nothing, empty) == (b"", b"")
    assert list(_ids(some)) == [1]


def test_rows_without_a_key_have_unique_handles() -> None:
    definition = _table()
    rows = [(n, b"x") for n in range(100)]
    [value] = encode_transactions([[_insert(*rows), _insert(*rows)]], lambda _: definition, 1)
    [mutation] = pb.PrewriteValue.FromString(value).mutations
    assert len(set(mutation.inserted_rows)) == 200


def test_integer_key_is_the_handle() -> None:
    key: Json = col("id", t.LONGLONG, not_null=True, unsigned=True)
    key["type"]["Flag"] |= t.FLAG_PRIMARY
    definition = table("t", key, pk_is_handle=True)
    event = RowsEvent(
        RowKind.INSERT, _map(types=b"\x08", metadata=(0,)), b"", b"\x01", b"\x00" + b"\xff" * 8 + b"\x00" + bytes(8)
    )
    [value] = encode_transactions([[event]], lambda _: definition, 1)
    assert [c.after for c in _decoded(value, definition)] == [{"id": str((1 << 64) - 1)}, {"id": "0"}]
    [mutation] = pb.PrewriteValue.FromString(value).mutations
    assert mutation.inserted_rows[0] == b"\x08\x01\x00"


def test_partial_images_are_refused() -> None:
    event = RowsEvent(RowKind.DELETE, _map(), b"\x01", b"", b"\x00\x01\x00\x00\x00")
    with pytest.raises(SourceRefused, match=r"lacks the columns v: .*table=d\.t.*binlog_row_image"):
        encode_transactions([[event]], lambda _: _table(), 1)


@pytest.mark.parametrize(
    ("types", "metadata", "message"),
    [
        (b"\x03\xff", (0, 4), "column v has a type that cannot be replicated: geometry"),
        (b"\x03\x8d", (0, 80), "compressed VARCHAR"),
        (b"\x03\x63", (0, 0), "type number 99"),
        (b"\x08\x0f", (0, 80), "column id is int in the definition, and another type in the log"),
        (b"\x03\x0f", (0, 81), "column v is varchar"),
        (b"\x03\xfe", (0, 254 << 8 | 80), "column v is varchar"),
        (b"\x03", (0,), "the definition has the columns id, v"),
    ],
)
def test_unsupported_types_are_refused(types: bytes, metadata: tuple[int, ...], message: str) -> None:
    event = RowsEvent(RowKind.INSERT, _map(types=types, metadata=metadata), b"", b"\x03", b"")
    with pytest.raises(SchemaError, match=message) as error:
        encode_transactions([[event]], lambda _: _table(), 1)
    assert error.value.where["table"] == "d.t"
    assert error.value.hint


@pytest.mark.parametrize("cut", range(1, 8))
def test_damaged_rows_are_errors(cut: int) -> None:
    rows = _image(1, b"ab") + _image(2, b"ab")[:-cut]
    event = RowsEvent(RowKind.INSERT, _map(), b"", b"\x03", rows)
    with pytest.raises(WireError, match=r"a row of kind insert cannot be read.*table=d\.t row=1"):
        encode_transactions([[event]], lambda _: _table(), 1)


def test_shape_is_reused_in_the_next_batch() -> None:
    """Each batch has its own table maps, which equal the previous ones."""
    definition = _table()
    assert derive_shape(_insert((1, b"x")), definition) is derive_shape(_insert((2, b"y")), definition)
    assert derive_shape(_insert((1, b"x")), _table()) is not derive_shape(_insert((2, b"y")), definition)
