"""Shapes from SHOW CREATE TABLE and canonical values, without a server."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlake.compare import (
    EXPRESSION,
    JSON_DEEP,
    LATIN1_TEXT,
    KeyStructure,
    TableStructure,
    as_latin1,
    build_canonical_converter,
    decode_captured_value,
    list_exemptions,
    normalize_type,
    parse_create,
)
from binlake.errors import WireError
from binlake.testkit.captures import read_expected_states
from binlake.testkit.captures.capture import Capture
from binlake.testkit.captures.state import FLOAT_BOUNDS, LOST_DEFAULT, CaptureRules

CAPTURES = Path(__file__).parents[2] / "captures"


@pytest.mark.long
@pytest.mark.parametrize("name", ["bank", "keys", "shard", "sysbench_like"])
def test_every_recorded_table_can_be_read(name: str) -> None:
    for state in read_expected_states(Capture(CAPTURES / name)):
        for table in (t for t in state.contents if t.get("kind") == "BASE TABLE"):
            shape = parse_create(table["create"], table["types"])
            assert [column.name for column in shape.columns] == table["columns"]
            assert any(key.name == "primary" for key in shape.keys) == ("PRIMARY KEY" in table["create"])
            rules = [build_canonical_converter(kind) for kind in table["types"]]
            for row in table["rows"]:
                assert [rule(decode_captured_value(v)) is None for rule, v in zip(rules, row, strict=True)] == [
                    v is None for v in row
                ]


def test_keys_of_every_form() -> None:
    create = """CREATE TABLE `o``dd` (
  `a,b` varchar(9) NOT NULL COMMENT ', KEY `no` (`x`)',
  `c` int(11) DEFAULT '1',
  PRIMARY KEY (`a,b`(3),`c`) /*T![clustered_index] NONCLUSTERED */,
  UNIQUE KEY `U``k` (`c`),
  KEY `ex` ((lower(`a,b`)),`c`) /*!80000 INVISIBLE */,
  CONSTRAINT `fk` FOREIGN KEY (`c`) REFERENCES `d`.`p` (`id`) ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_bin COMMENT='x) COLLATE=y'
PARTITION BY HASH (`c`) PARTITIONS 5"""
    shape = parse_create(create, ["varchar(9)", "int(11)"])
    assert shape.keys == {
        KeyStructure("primary", True, (("a,b", 3), ("c", 0))),
        KeyStructure("u`k", True, (("c", 0),)),
        KeyStructure("ex", False, ((EXPRESSION, 0), ("c", 0))),
    }
    assert [(c.name, c.nullable, c.collation) for c in shape.columns] == [("a,b", False, "latin1_bin"), ("c", True, "")]


@pytest.mark.parametrize(
    "create", ["", "CREATE VIEW v AS SELECT 1", "CREATE TABLE t (`a` int", "CREATE TABLE t (`a` int)"]
)
def test_text_that_is_not_a_table_is_refused(create: str) -> None:
    with pytest.raises(WireError):
        parse_create(create, ["int", "int"])


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("INT(11)  UNSIGNED", "int unsigned"),
        ("tinyint(1)", "tinyint"),
        ("year(4)", "year"),
        ("decimal(10,0)", "decimal(10,0)"),
        ("varchar(20)", "varchar(20)"),
        ("int(8) unsigned zerofill", "int unsigned zerofill"),
        ("enum('a','B''c','d\\e')", 'enum["a", "B\'c", "d\\\\e"]'),
    ],
)
def test_types_have_one_canonical_spelling(text: str, spelled: str) -> None:
    assert normalize_type(text) == spelled


def test_servers_escape_backslashes_in_elements_and_tidb_does_not() -> None:
    assert normalize_type(r"enum('Z\\z')", backslash_escapes=True) == normalize_type(r"enum('Z\z')")


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_and_equal_double_have_the_same_text(value: float) -> None:
    rule = build_canonical_converter("float")
    assert rule(repr(value)) == rule(f"{value:.17g}")


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 12))
def test_padding_of_an_integer_is_ignored(value: int, zeros: int) -> None:
    sign, digits = ("-", str(-value)) if value < 0 else ("", str(value))
    assert build_canonical_converter("bigint(20) unsigned zerofill")(sign + "0" * zeros + digits) == str(value)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=5, min_value=-(10**9), max_value=10**9))
def test_scale_of_a_decimal_is_compared(value: object) -> None:
    assert build_canonical_converter("decimal(20,5)")(f"{value:f}") != build_canonical_converter("decimal(20,6)")(
        f"{value:f}0"
    )


def test_blanks_case_and_bytes_of_text_are_compared() -> None:
    assert build_canonical_converter("varchar(9)")("Ab ") == "Ab "
    assert build_canonical_converter("varbinary(9)")(b"\x00\xff") == "00FF"
    assert (
        build_canonical_converter("bit(12)")(b"\x0a\xbc")
        == build_canonical_converter("bit(12)")(b"\x00\x0a\xbc")
        == "2748"
    )


def test_json_is_compared_as_a_value() -> None:
    rule = build_canonical_converter("json")
    assert rule('{"b":1,"a":[1.50]}') == rule('{"a": [1.5], "b": 1}')
    assert rule("1") == rule("1.0")  # TiDB prints both alike
    assert rule("[1e2, 1e300]") == rule("[100, 1e300]")
    assert rule("1") != rule("1.5")
    assert rule("12345678901234567890123") != rule("12345678901234567890124")
    assert rule("{") == "not JSON: {"


def test_latin1_column_with_lost_default_may_be_utf8mb4() -> None:
    def shape(charset: str, default: str) -> TableStructure:
        text = f"CREATE TABLE `t` (`b` varchar(9) CHARACTER SET {charset} COLLATE {charset}_bin DEFAULT '{default}')"
        return parse_create(text, ["varchar(9)"])

    wide, exempted = shape("utf8mb4", "\ufffd"), Counter[str]()
    assert list(CaptureRules("mariadb").find_differences(shape("latin1", "\ufffd"), wide, exempted)) == []
    assert exempted == {LOST_DEFAULT: 1}
    for source, target in (("latin1", "utf8mb3"), ("ascii", "utf8mb4")):
        assert list(
            CaptureRules("mariadb").find_differences(shape(source, "\ufffd"), shape(target, "\ufffd"), exempted)
        )
    assert list(CaptureRules("mariadb").find_differences(shape("latin1", "x"), wide, exempted))
    assert exempted == {LOST_DEFAULT: 1}


def test_text_that_is_not_utf8_is_compared_as_latin1_and_counted() -> None:
    bare = decode_captured_value({"hex": "f680"})
    assert list_exemptions("varchar(20)", bare) == (LATIN1_TEXT,)
    assert as_latin1("varchar(20)", bare) == "ö€"
    assert as_latin1("text", decode_captured_value({"hex": "81ff"})) == "\x81ÿ"
    # other values are unchanged
    assert (as_latin1("varchar(20)", "ö"), list_exemptions("varchar(20)", "ö")) == ("ö", ())
    assert (as_latin1("varbinary(9)", bare), list_exemptions("varbinary(9)", bare)) == (b"\xf6\x80", ())
    assert as_latin1("char(1)", None) is None
    with pytest.raises(WireError, match="a text recorded as bytes: c3b6"):
        as_latin1("varchar(20)", decode_captured_value({"hex": "c3b6"}))


def test_exemptions_are_reported_per_value() -> None:
    assert list_exemptions("float", "3.40282e38")
    assert not list_exemptions("float", "0.1")
    assert list_exemptions("int(8) unsigned zerofill", "7")
    assert list_exemptions("json", "{}")
    assert not list_exemptions("double", "1e300")


def test_json_that_mariadb_cannot_read_is_reported() -> None:
    deep = ["[" * levels + "]" * levels for levels in (31, 32)]
    assert [JSON_DEEP in list_exemptions("json", value) for value in deep] == [False, True]
    assert JSON_DEEP in list_exemptions("json", '{"a":' * 32 + "1" + "}" * 32)
    assert JSON_DEEP not in list_exemptions("json", deep[1], "mysql")


def test_float_next_to_a_limit_has_tidbs_form() -> None:
    # TiDB's limits are 32-bit numbers: it shows 999999986991104 as 1e15, and the number next to 1e-15 in full.
    rule = build_canonical_converter("float")
    assert rule("999999986991104") == rule("1e15")
    assert rule("0.0000000000000010000000036274937") != rule("1.00001e-15")
    assert rule("1e-45") == rule("1.4013e-45")
    assert list_exemptions("float", "1e15")
    assert not list_exemptions("float", "0.0000000000000010000000036274937")


def test_invalid_capture_values_are_refused() -> None:
    with pytest.raises(WireError, match="not a value"):
        decode_captured_value(7)


def test_backslashes_escape_in_texts_but_not_in_elements() -> None:  # issue 13.13: TiDB's own SHOW CREATE
    create = (
        "CREATE TABLE `m` (\n  `id` int(11) NOT NULL COMMENT 'ends \\\\',\n"
        "  `e` enum('x\\','y''\\') NOT NULL DEFAULT 'x\\\\' COMMENT 'q '' e\\\\',\n  `s` set('a\\') DEFAULT NULL,\n"
        "  PRIMARY KEY (`id`),\n  KEY `k` (`e`) COMMENT 'index \\\\'\n)"
        " ENGINE=InnoDB COLLATE=utf8mb4_bin COMMENT='t \\\\'"
    )
    shape = parse_create(create, ["int(11)", "enum('x\\','y''\\')", "set('a\\')"])
    assert [(c.name, c.nullable) for c in shape.columns] == [("id", False), ("e", False), ("s", True)]
    assert [c.type for c in shape.columns[1:]] == ['enum["x\\\\", "y\'\\\\"]', 'set["a\\\\"]']
    assert {str(key) for key in shape.keys} == {"unique key primary (id)", "key k (e)"}


def test_a_float_may_lack_its_bounds_and_nothing_else() -> None:
    def shape(kind: str) -> TableStructure:
        return parse_create(f"CREATE TABLE `t` (\n  `g` {kind} DEFAULT NULL\n)", [kind])

    exempted = Counter[str]()
    assert (
        list(
            CaptureRules("mariadb").find_differences(shape("double(20,3) unsigned"), shape("double unsigned"), exempted)
        )
        == []
    )
    assert exempted == {FLOAT_BOUNDS: 1}
    for found in ("double", "float unsigned", "double(20,2) unsigned", "decimal(20,3) unsigned"):
        assert list(CaptureRules("mariadb").find_differences(shape("double(20,3) unsigned"), shape(found), exempted))
    assert list(CaptureRules("mariadb").find_differences(shape("double"), shape("double(20,3)"), exempted))
    assert exempted == {FLOAT_BOUNDS: 1}
