"""Any bytes give rows or a WireError, never another exception or a hang."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.tidb_json import Tables, article_table
from test_codec_values import ALL_TYPES, SAMPLES

from binlake.errors import WireError
from binlake.rows.codec import MutationBuilder, decode_transaction, encode_commit_binlog, encode_prewrite_value
from binlake.rows.codec.jsons import read_json
from binlake.wire import binlog_pb2 as pb

TABLES = Tables(article_table(), ALL_TYPES)


def outcome(payload: bytes) -> int:
    """The number of decoded rows; -1 for a WireError that names the commit_ts. Any other exception fails the test."""
    try:
        return sum(1 for _ in decode_transaction(payload, 10, 5, TABLES))
    except WireError as error:
        return -1 if error.where["commit_ts"] == "10" else -2


def of_rows(table_id: int, kind: int, row: bytes) -> bytes:
    message = pb.TableMutation(table_id=table_id, sequence=[pb.MutationType.Name(kind)])
    {0: message.inserted_rows, 1: message.updated_rows, 4: message.deleted_rows}[kind].append(row)
    return encode_commit_binlog(5, 10, b"k", encode_prewrite_value(1, [message]))


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_random_payloads(payload: bytes) -> None:
    assert outcome(payload) >= -1


@settings(max_examples=examples(600))
@given(st.sampled_from([45, ALL_TYPES.id]), st.sampled_from([0, 1, 4]), st.binary(max_size=120))
def test_random_rows(table_id: int, kind: int, row: bytes) -> None:
    assert outcome(of_rows(table_id, kind, row)) in (-1, 1)


def whole_rows() -> list[tuple[int, bytes]]:
    message = MutationBuilder(ALL_TYPES).insert(SAMPLES).update(SAMPLES, SAMPLES).delete(SAMPLES).message
    return [(0, message.inserted_rows[0]), (1, message.updated_rows[0]), (4, message.deleted_rows[0])]


WHOLE = whole_rows()


@settings(max_examples=examples(600))
@given(st.sampled_from(WHOLE), st.data())
def test_damaged_rows_of_every_type(case: tuple[int, bytes], data: st.DataObject) -> None:
    kind, row = case
    at = data.draw(st.integers(0, len(row) - 1))
    byte = data.draw(st.integers(0, 255))
    assert outcome(of_rows(ALL_TYPES.id, kind, row[:at] + bytes((byte,)) + row[at + 1 :])) in (-1, 1)


@pytest.mark.parametrize("case", WHOLE, ids=["insert", "update", "delete"])
def test_row_truncated_at_every_byte(case: tuple[int, bytes]) -> None:
    kind, row = case
    assert outcome(of_rows(ALL_TYPES.id, kind, row)) == 1
    for end in range(len(row)):
        assert outcome(of_rows(ALL_TYPES.id, kind, row[:end])) in (-1, 1)


@settings(max_examples=examples(300))
@given(st.binary(min_size=1, max_size=80))
def test_random_json(data: bytes) -> None:
    try:
        read_json(data, 0)
    except (ValueError, IndexError, KeyError):
        return


def test_json_document_that_contains_itself_is_refused() -> None:
    entries = b"".join(b"\x03" + (0).to_bytes(4, "little") for _ in range(20))
    loop = (20).to_bytes(4, "little") + (8 + len(entries)).to_bytes(4, "little") + entries
    with pytest.raises(ValueError, match="damaged"):
        read_json(b"\x03" + loop, 0)
