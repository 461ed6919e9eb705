"""Texts whose bytes are not UTF-8, read as MySQL latin1 (`source.invalid-text`); the capture `zones` has such texts."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest
from support.mariadb import MariaDb
from support.tidb_json import Tables, column, index, table_def, table_info

from binlake.errors import WireError
from binlake.rows.codec import MutationBatch, MutationBuilder, encode_prewrite_value, walk
from binlake.rows.codec.values import InvalidText, decode_latin1
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

NOT_NULL = t.FLAG_NOT_NULL
PRIMARY = index(1, "PRIMARY", [("id", -1)], unique=True, primary=True)
OE, BARE = "ö".encode().hex().upper(), "F6"


def tables(charset: str = "latin1", **more: Any) -> tuple[TableDef, TableDef]:
    """(the source's definition, a definition of the same columns that allows writing any bytes)."""
    found = []
    for of in (charset, "binary"):
        cols = [
            column(1, "id", t.LONG, flag=NOT_NULL | t.FLAG_PRIMARY),
            column(2, "v", t.VARCHAR, flen=20, charset=of, collate="binary" if of == "binary" else f"{of}_bin"),
            *more.get("columns", ()),
        ]
        keys = [PRIMARY, *more.get("keys", ())]
        found.append(table_def(table_info(10, "Latein", cols, index_info=keys, pk_is_handle=True)))
    return found[0], found[1]


def decode(
    builder: MutationBuilder, table: TableDef, invalid_text: InvalidText = "latin1"
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """(the rows, the number of values read as latin1 by table)."""
    payload = encode_prewrite_value(9, [builder.message])
    binlog = build.build_prewrite(
        99, b"k", pb.PrewriteValue.FromString(payload).SerializeToString()
    ).SerializeToString()
    batch = MutationBatch(invalid_text=invalid_text)
    batch.add(binlog, 100, 99, Tables(table))
    return batch.take().to_pylist(maps_as_pydicts="strict"), dict(batch.stats.latin1_texts)


@pytest.mark.parametrize("charset", ["latin1", "utf8mb4"])
def test_a_text_that_is_not_utf8_is_read_as_latin1_and_counted(charset: str) -> None:
    table, writes = tables(charset)
    build_rows = MutationBuilder(writes).insert({"id": "1", "v": OE}).insert({"id": "2", "v": BARE})
    build_rows.update({"id": "2", "v": BARE}, {"id": "2", "v": "80FF41"}).delete({"id": "2", "v": "80FF41"})
    rows, counted = decode(build_rows, table)
    assert [(row["before"], row["after"]) for row in rows] == [
        (None, {"id": "1", "v": "ö"}),
        (None, {"id": "2", "v": "ö"}),
        ({"id": "2", "v": "ö"}, {"id": "2", "v": "€ÿA"}),
        ({"id": "2", "v": "€ÿA"}, None),
    ]
    assert counted == {"test.Latein": 4}


def test_many_rows_at_once_read_and_count_the_same() -> None:
    table, writes = tables()
    build_rows, count = MutationBuilder(writes), 4 * walk.FEWEST
    for number in range(count):
        build_rows.insert({"id": str(number), "v": BARE if number % 3 == 0 else OE})
    rows, counted = decode(build_rows, table)
    assert {row["after"]["v"] for row in rows} == {"ö"}
    assert [row["after"]["id"] for row in rows] == [str(number) for number in range(count)]
    assert counted == {"test.Latein": sum(number % 3 == 0 for number in range(count))}


def test_refusal_names_the_setting() -> None:
    table, writes = tables()
    with pytest.raises(WireError, match=r"the latin1 column v holds bytes that are not UTF-8: X'F6'") as found:
        decode(MutationBuilder(writes).insert({"id": "1", "v": BARE}), table, "refuse")
    assert 'source.invalid-text = "latin1"' in found.value.hint


V_UNIQUE = index(2, "u", [("v", -1)], unique=True)
BY_PREFIX = index(2, "u", [("v", 3)], unique=True)
OF_G = index(2, "u", [("g", -1)], unique=True)
G = column(3, "g", t.VARCHAR, flen=20, generated_expr_string="upper(`v`)", generated_stored=False)


@pytest.mark.parametrize(
    "more", [{"keys": [V_UNIQUE]}, {"keys": [BY_PREFIX]}, {"keys": [OF_G], "columns": [G]}], ids=["v", "v(3)", "of g"]
)
def test_key_that_is_not_utf8_is_refused(more: Any) -> None:
    # `ö` as C3B6 and as F6 are two rows at the source; read alike, the later row would replace the earlier one.
    table, writes = tables(**more)
    assert decode(MutationBuilder(writes).insert({"id": "1", "v": OE}), table)[1] == {}
    with pytest.raises(WireError, match=r"the latin1 column v of a unique key holds .* X'F6'.*commit_ts=100") as found:
        decode(MutationBuilder(writes).insert({"id": "2", "v": BARE}), table)
    assert "filter.ignore-table" in found.value.hint
    assert "invalid-text" not in found.value.hint


def test_primary_key_in_the_handle_is_refused() -> None:
    both = []
    for of in ("latin1", "binary"):
        cols = [column(1, "k", t.VARCHAR, flen=9, charset=of, collate=f"{of}_bin", flag=NOT_NULL | t.FLAG_PRIMARY)]
        keys = [index(1, "PRIMARY", [("k", -1)], unique=True, primary=True)]
        both.append(table_def(table_info(10, "Latein", cols, index_info=keys, is_common_handle=True)))
    with pytest.raises(WireError, match="the latin1 column k of a unique key"):
        decode(MutationBuilder(both[1]).insert({"k": BARE}), both[0])


def test_table_without_key_keeps_both_rows() -> None:
    both = []
    for of in ("latin1", "binary"):
        cols = [column(1, "v", t.VARCHAR, flen=9, charset=of, collate=f"{of}_bin")]
        both.append(table_def(table_info(10, "Latein", cols, index_info=[])))
    rows, _ = decode(MutationBuilder(both[1]).insert({"v": BARE}).insert({"v": OE}), both[0])
    assert [row["after"] for row in rows] == [{"v": "ö"}, {"v": "ö"}]


@pytest.mark.mariadb
def test_latin1_matches_the_server(mariadb: MariaDb) -> None:
    login = {"user": mariadb.user, "password": mariadb.password, "charset": "utf8mb4"}
    with pymysql.connect(host="127.0.0.1", port=mariadb.port, **login) as link, link.cursor() as cursor:
        for byte in range(256):
            cursor.execute(f"SELECT CONVERT(_latin1 X'{byte:02X}' USING utf8mb4)")
            assert cursor.fetchone() == (decode_latin1(bytes((byte,))),)
