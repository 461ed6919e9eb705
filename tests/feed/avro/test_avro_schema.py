"""Schemas of the Avro protocol: the page's blocks, TiCDC's names, defaults and modes (MISSION S2)."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest
from support.tidb_json import INT_PK, Json, article_table, column, index, table_def, table_info

from binlake.config.protocols import AvroOptions
from binlake.errors import ConfigError
from binlake.feed.avroschema import build_key_schema, build_legal_name, build_value_schema
from binlake.rows.schema import mysqltypes as t

PAGE = AvroOptions()


def block(kind: Json, options: AvroOptions = PAGE) -> Any:
    """The column's field in the value schema of a table with an id."""
    table = table_def(table_info(1, "t1", [column(1, "id", flag=INT_PK), kind], pk_is_handle=True))
    schema = json.loads(build_value_schema(table, options))
    fastavro.parse_schema(schema)
    return schema["fields"][1]


# S2-14, S2-18, S2-34
def test_key_schema_is_a_record_of_the_primary_key() -> None:
    assert json.loads(build_key_schema(article_table(), PAGE)) == {
        "name": "test",
        "namespace": "default.test",
        "type": "record",
        "fields": [{"name": "id", "type": {"connect.parameters": {"tidb_type": "INT"}, "type": "int"}}],
    }


def test_schema_text_is_compact_with_ticdcs_order_of_keys() -> None:
    assert build_value_schema(article_table(), PAGE) == (
        '{"type":"record","name":"test","namespace":"default.test","fields":['
        '{"name":"id","type":{"type":"int","connect.parameters":{"tidb_type":"INT"}}},'
        '{"default":null,"name":"name","type":["null",{"type":"string","connect.parameters":{"tidb_type":"TEXT"}}]}]}'
    )


# S2-15
def test_not_null_unique_index_is_the_key_without_a_primary_key() -> None:
    cols = [column(1, "a"), column(2, "c", flag=t.FLAG_NOT_NULL)]
    unique = table_def(table_info(1, "t", cols, index_info=[index(1, "c", [("c", -1)], unique=True)]))
    assert [field["name"] for field in json.loads(build_key_schema(unique, PAGE))["fields"]] == ["c"]
    pair = [column(1, "a", flag=t.FLAG_NOT_NULL), column(2, "b", flag=t.FLAG_NOT_NULL), column(3, "c")]
    primary = index(1, "PRIMARY", [("a", -1), ("b", -1)], unique=True, primary=True)
    both = table_def(table_info(1, "t", pair, index_info=[primary]))
    assert [field["name"] for field in json.loads(build_key_schema(both, PAGE))["fields"]] == ["a", "b"]


# S2-15
def test_keyless_table_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"test\.heap"):
        build_key_schema(table_def(table_info(1, "heap", [column(1, "a")])), PAGE)


# S2-16
def test_virtual_columns_are_left_out_and_stored_ones_are_not() -> None:
    cols = [
        column(1, "id", flag=INT_PK),
        column(2, "v", generated_expr_string="`id`+1"),
        column(3, "s", generated_expr_string="`id`+2", generated_stored=True),
    ]
    table = table_def(table_info(1, "t", cols, pk_is_handle=True))
    assert [field["name"] for field in json.loads(build_value_schema(table, PAGE))["fields"]] == ["id", "s"]


UNSIGNED = t.FLAG_UNSIGNED
TYPES = [
    # S2-21
    (column(2, "c", t.TINY), "int", {"tidb_type": "INT"}),
    (column(2, "c", t.SHORT), "int", {"tidb_type": "INT"}),
    (column(2, "c", t.INT24), "int", {"tidb_type": "INT"}),
    (column(2, "c", t.LONG), "int", {"tidb_type": "INT"}),
    (column(2, "c", t.TINY, flag=UNSIGNED), "int", {"tidb_type": "INT UNSIGNED"}),
    (column(2, "c", t.SHORT, flag=UNSIGNED), "int", {"tidb_type": "INT UNSIGNED"}),
    (column(2, "c", t.INT24, flag=UNSIGNED), "int", {"tidb_type": "INT UNSIGNED"}),
    (column(2, "c", t.LONG, flag=UNSIGNED), "long", {"tidb_type": "INT UNSIGNED"}),
    (column(2, "c", t.LONGLONG), "long", {"tidb_type": "BIGINT"}),
    (column(2, "c", t.YEAR), "int", {"tidb_type": "YEAR"}),
    # S2-22
    (column(2, "c", t.LONGLONG, flag=UNSIGNED), "long", {"tidb_type": "BIGINT UNSIGNED"}),
    # S2-23
    *((column(2, "c", kind, charset="binary"), "bytes", {"tidb_type": "BLOB"}) for kind in sorted(t.STRINGS)),
    # S2-20, S2-24
    *((column(2, "c", kind), "string", {"tidb_type": "TEXT"}) for kind in sorted(t.STRINGS)),
    # S2-25
    (column(2, "c", t.FLOAT), "double", {"tidb_type": "FLOAT"}),
    (column(2, "c", t.DOUBLE), "double", {"tidb_type": "DOUBLE"}),
    # S2-26
    (column(2, "c", t.DATE), "string", {"tidb_type": "DATE"}),
    (column(2, "c", t.DATETIME), "string", {"tidb_type": "DATETIME"}),
    (column(2, "c", t.TIMESTAMP), "string", {"tidb_type": "TIMESTAMP"}),
    (column(2, "c", t.DURATION), "string", {"tidb_type": "TIME"}),
    # S2-27
    (column(2, "c", t.BIT, flen=64), "bytes", {"tidb_type": "BIT", "length": "64"}),
    # S2-28
    (column(2, "c", t.JSON), "string", {"tidb_type": "JSON"}),
    # S2-29, X-14
    (column(2, "c", t.ENUM, elems=["a", "b", "c"]), "string", {"tidb_type": "ENUM", "allowed": "a,b,c"}),
    (column(2, "c", t.SET, elems=["a,1", "b'"]), "string", {"tidb_type": "SET", "allowed": "a\\,1,b'"}),
]


@pytest.mark.parametrize(
    ("kind", "avro", "parameters"), TYPES, ids=[parameters["tidb_type"] for *_, parameters in TYPES]
)
def test_each_type_has_the_pages_avro_type_and_parameters(kind: Json, avro: str, parameters: Json) -> None:
    union = block(kind)["type"]
    assert union == ["null", {"type": avro, "connect.parameters": parameters}]


# S2-30, S2-31
def test_decimal_is_bytes_with_precision_and_scale_or_a_string() -> None:
    kind = column(2, "c", t.NEWDECIMAL, flag=t.FLAG_NOT_NULL, flen=10, decimal=4)
    assert block(kind)["type"] == {
        "connect.parameters": {"tidb_type": "DECIMAL"},
        "logicalType": "decimal",
        "precision": 10,
        "scale": 4,
        "type": "bytes",
    }
    text = block(kind, AvroOptions(decimals="string"))["type"]
    assert text == {"connect.parameters": {"tidb_type": "DECIMAL"}, "type": "string"}


# S2-32, X-13
def test_modes_change_only_the_type() -> None:
    unsigned = column(2, "c", t.LONGLONG, flag=UNSIGNED)
    assert block(unsigned, AvroOptions(unsigned_bigints="string"))["type"][1] == {
        "type": "string",
        "connect.parameters": {"tidb_type": "BIGINT UNSIGNED"},
    }
    assert block(column(2, "c", t.FLOAT), AvroOptions(floats="float"))["type"][1]["type"] == "float"


# S2-08, S2-17, X-13
def test_extension_is_three_plain_fields_after_the_columns() -> None:
    def fields(options: AvroOptions) -> list[Json]:
        fields: list[Json] = json.loads(build_value_schema(article_table(), options))["fields"]
        return fields

    assert len(fields(PAGE)) == 2
    assert fields(AvroOptions(extension=True))[2:] == [
        {"name": "_tidb_op", "type": "string"},
        {"name": "_tidb_commit_ts", "type": "long"},
        {"name": "_tidb_commit_physical_time", "type": "long"},
    ]
    newer = fields(AvroOptions(extension=True, extension_defaults=True))[2:]
    assert [field["default"] for field in newer] == ["", 0, 0]


NOT_NULL = t.FLAG_NOT_NULL
DEFAULTS = [
    (column(2, "c", flag=NOT_NULL), "absent"),
    (column(2, "c", flag=NOT_NULL, default="7"), 7),
    (column(2, "c"), None),
    (column(2, "c", default="7"), 7),
    (column(2, "c", t.LONGLONG, flag=UNSIGNED | NOT_NULL, default="18446744073709551615"), -1),
    (column(2, "c", t.DOUBLE, flag=NOT_NULL, default="1.5"), 1.5),
    # U-28
    (column(2, "c", t.VARCHAR, default="null"), "null"),
    (column(2, "c", t.NEWDECIMAL, flag=NOT_NULL, flen=10, decimal=2, default="1.00"), "absent"),
    (column(2, "c", t.NEWDECIMAL, flen=10, decimal=2, default="1.00"), None),
    (column(2, "c", t.TIMESTAMP, flag=NOT_NULL, default="CURRENT_TIMESTAMP"), "absent"),
    (column(2, "c", t.DATETIME, default="2024-02-29 00:00:00"), "2024-02-29 00:00:00"),
]


@pytest.mark.parametrize(
    ("kind", "default"),
    DEFAULTS,
    ids=[
        "not null",
        "not null with default",
        "nullable",
        "nullable with default",
        "unsigned bigint",
        "double",
        "text null",
        "decimal not null",
        "decimal nullable",
        "current timestamp",
        "datetime",
    ],
)
def test_default_matches_the_first_branch_of_its_union(kind: Json, default: object) -> None:
    field = block(kind)
    assert field.get("default", "absent") == default
    if isinstance(field["type"], list):
        assert (field["type"][0] == "null") == (default is None)


# S2-46
def test_names_that_avro_forbids_are_made_legal() -> None:
    assert [build_legal_name(name) for name in ("1Col", "A.B", "N-amespace", "你好", "_ok9")] == [
        "_1Col", "A_B", "N_amespace", "__", "_ok9",
    ]  # fmt: skip


# S2-46
def test_two_columns_with_one_legal_name_are_refused() -> None:
    cols = [column(1, "id", flag=INT_PK), column(2, "a.b"), column(3, "a-b")]
    with pytest.raises(ConfigError, match="a_b"):
        build_value_schema(table_def(table_info(1, "t", cols, pk_is_handle=True)), PAGE)


def test_namespace_combines_changefeed_and_database() -> None:
    table = table_def(table_info(1, "t", [column(1, "id", flag=INT_PK)], pk_is_handle=True), "my-db")
    schema = json.loads(build_key_schema(table, AvroOptions(namespace="team.a")))
    assert schema["namespace"] == "team_a.my_db"
