"""The Open Protocol as TiCDC's page shows it; a decoder that follows that page reads every row back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from support.examples import examples
from support.feedrows import COMMIT_TS, EVERY, ROWS, Row, columns_of, encoded, every_kind
from support.openprotocol import decode_open, row_of_open
from support.tidb_json import INT_PK, Json, column, table_def, table_info

from binlake.config.protocols import OpenProtocolOptions
from binlake.extras.protocols.openprotocol import OpenProtocolFormat, compute_column_flag
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.rows.schema import mysqltypes as t

OWN = OpenProtocolFormat(OpenProtocolOptions())
T1 = table_def(
    table_info(1, "t1", [column(1, "id", t.LONG, flag=INT_PK), column(2, "val", t.VARCHAR, flen=16)], pk_is_handle=True)
)
KEY: Json = {"ts": COMMIT_TS, "scm": "test", "tbl": "t1", "t": 1}


def member(number: int, text: str | None) -> Json:
    return {"id": {"t": 3, "h": True, "f": 11, "v": number}, "val": {"t": 15, "f": 64, "v": text}}


@pytest.mark.parametrize(
    ("op", "old", "new", "shown"),
    [
        (INSERT, [], [{"id": "1", "val": "aa"}], {"u": member(1, "aa")}),
        (UPDATE, [{"id": "1", "val": None}], [{"id": "1", "val": "b"}], {"u": member(1, "b"), "p": member(1, None)}),
        (DELETE, [{"id": "1", "val": "aa"}], [], {"d": member(1, "aa")}),
    ],
)
def test_events_equal_the_pages_examples(op: str, old: list[Row], new: list[Row], shown: Json) -> None:
    [(key, value)] = encoded(OWN, op, old, new, T1)
    text = json.dumps(KEY, separators=(",", ":")).encode()
    assert key == (1).to_bytes(8, "big") + len(text).to_bytes(8, "big") + text
    text = json.dumps(shown, separators=(",", ":")).encode()
    assert value == len(text).to_bytes(8, "big") + text


def test_options_control_old_values_and_columns_of_deletions() -> None:
    own = OpenProtocolFormat(OpenProtocolOptions(old_values=False, delete_keys_only=True))
    row: Row = {"id": "1", "val": "a"}
    [(key, value)] = encoded(own, UPDATE, [row], [row], T1)
    assert decode_open(key, value) == [(KEY, {"u": member(1, "a")})]
    [(key, value)] = encoded(own, DELETE, [row], [], T1)
    assert decode_open(key, value) == [(KEY, {"d": {"id": member(1, None)["id"]}})]


def test_bytes_of_a_binary_column_equal_the_pages_example() -> None:
    table = table_def(table_info(1, "t", [column(1, "b", t.VARCHAR, flen=16, charset="binary")]))
    [(_, value)] = encoded(OWN, INSERT, [], [{"b": b"\x89PNG\r\n\x1a\n".hex().upper()}], table)
    assert rb'"v":"\\x89PNG\\r\\n\\x1a\\n"' in value


@pytest.mark.parametrize(
    ("flag", "more", "wanted"),
    [
        (t.FLAG_UNIQUE, {"generated_expr_string": "1", "generated_stored": True}, 0b101_0101),
        (8 | t.FLAG_PRIMARY | t.FLAG_NOT_NULL, {"generated_expr_string": "1", "generated_stored": True,
                                                "charset": "utf8mb4"}, 0b010_1110),
        (t.FLAG_UNSIGNED, {}, 0b1100_0001),
    ],
    ids=["unique generated", "primary key", "unsigned"],
)  # fmt: skip
def test_column_flags_equal_the_pages(flag: int, more: Json, wanted: int) -> None:
    table = table_def(table_info(1, "t", [column(1, "c", t.LONG, flag=flag, **more)], pk_is_handle=True))
    [own] = table.row_columns
    assert compute_column_flag(table, own, handle=bool(wanted & 2)) == wanted


@pytest.mark.long
@settings(max_examples=examples(60), deadline=None)
@given(ROWS)
def test_every_row_is_decoded_unchanged(rows: list[Row]) -> None:
    columns = columns_of(EVERY)
    for op, old, new in every_kind(rows):
        for number, message in enumerate(encoded(OWN, op, old, new)):
            [(key, value)] = decode_open(*message)
            assert key == {**KEY, "tbl": "every"}
            assert value is not None
            shown = {name: row_of_open(row, columns) for name, row in value.items()}
            sides = {"u": new, "p": old} if op == UPDATE else {"u": new} if op == INSERT else {"d": old}
            assert shown == {side: found[number] for side, found in sides.items()}


def test_resolved_event_has_its_ts_and_no_value() -> None:
    event = OWN.encode_watermark(COMMIT_TS)
    assert event is not None
    assert event.everywhere
    assert decode_open(event.key or b"", event.value or b"") == [({"ts": COMMIT_TS, "t": 3}, None)]
