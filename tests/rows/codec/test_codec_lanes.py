"""Decoding many rows at once equals decoding them one by one: the same rows, or the same error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from codec_golden import read_log
from codec_tables import (
    KINDS,
    as_payload,
    changed,
    damaged,
    decode_in_lanes,
    decode_plainly,
    random_mutation,
    random_table,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.tidb_json import Tables, column, index, table_def, table_info

from binlake.rows.codec import batch, walk
from binlake.rows.schema import mysqltypes as t
from binlake.testkit.captures.capture import Capture
from binlake.wire import binlog_pb2 as pb

pytestmark = pytest.mark.long

CAPTURES = Path(__file__).parents[2] / "captures"


@pytest.fixture(autouse=True, scope="module")
def _every_row_is_kept() -> Iterator[None]:
    """Keep every row: random rows are no table history, so a delete after an update could look like a second write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "without_echoes", lambda found, *_: (found, np.arange(found.num_rows), None))
        yield


seeds = st.integers(0, 2**48).map(Random)


@pytest.fixture(autouse=True, scope="module")
def _lanes_for_few_rows() -> Iterator[None]:
    """Decode even few rows together; otherwise they would be decoded one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "FEWEST", 1)
        yield


@settings(max_examples=examples(60), deadline=None)
@given(seeds)
def test_random_tables_decode_the_same(draw: Random) -> None:
    one, two = random_table(draw), random_table(draw, 46)
    payloads = [
        (ts, as_payload(ts, random_mutation(draw, one, draw.randint(0, 6)), random_mutation(draw, two, 2)))
        for ts in range(100, 100 + draw.randint(1, 4))
    ]
    tables = Tables(one.definition, two.definition)
    expected = decode_plainly(payloads, tables)
    assert isinstance(expected, list)
    assert decode_in_lanes(payloads, tables) == expected
    assert decode_in_lanes(payloads, tables, rows=draw.randint(1, 5), size=draw.choice([1, 60, 10**6])) == expected


@settings(max_examples=examples(60), deadline=None)
@given(seeds)
def test_reader_with_another_definition_decodes_the_same(draw: Random) -> None:
    table = random_table(draw)
    payloads = [(7, as_payload(7, random_mutation(draw, table, 12)))]
    tables = Tables(changed(draw, table))
    assert decode_in_lanes(payloads, tables) == decode_plainly(payloads, tables)


@settings(max_examples=examples(60), deadline=None)
@given(seeds)
def test_damaged_rows_decode_or_fail_the_same(draw: Random) -> None:
    table = random_table(draw)
    payloads = [(ts, as_payload(ts, random_mutation(draw, table, 3, damage=0.3))) for ts in (7, 8)]
    tables = Tables(table.definition)
    assert decode_in_lanes(payloads, tables) == decode_plainly(payloads, tables)


@settings(max_examples=examples(50), deadline=None)
@given(seeds)
def test_single_damaged_row(draw: Random) -> None:
    table = random_table(draw)
    for _ in range(8):
        payloads = [(7, as_payload(7, random_mutation(draw, table, 1, damage=1)))]
        assert decode_in_lanes(payloads, Tables(table.definition)) == decode_plainly(payloads, Tables(table.definition))


@settings(max_examples=examples(75), deadline=None)
@given(seeds)
def test_damaged_payloads_decode_or_fail_the_same(draw: Random) -> None:
    table = random_table(draw)
    payload = as_payload(7, random_mutation(draw, table, 5))
    payloads, tables = [(7, damaged(draw, payload))], Tables(table.definition)
    expected = decode_plainly(payloads, tables)
    assert decode_in_lanes(payloads, tables) == expected
    assert isinstance(expected, list) or "commit_ts=7" in expected


def test_one_truncated_row_among_intact_rows() -> None:
    draw = Random(3)
    table = random_table(draw)
    tables = Tables(table.definition)
    message = random_mutation(draw, table, 9)
    for rows in (message.inserted_rows, message.updated_rows, message.deleted_rows):
        for end in range(len(rows[1]) if len(rows) > 1 else 0):
            cut = pb.TableMutation.FromString(message.SerializeToString())
            {id(message.inserted_rows): cut.inserted_rows, id(message.updated_rows): cut.updated_rows}.get(
                id(rows), cut.deleted_rows
            )[1] = rows[1][:end]
            payloads = [(7, as_payload(7, cut))]
            assert decode_in_lanes(payloads, tables) == decode_plainly(payloads, tables)


def test_empty_row_before_another_is_refused() -> None:
    table = table_info(45, "t", [column(1, "c", t.VARCHAR, flen=9, flag=1)], is_common_handle=True,
                       index_info=[index(1, "PRIMARY", [("c", -1)], unique=True, primary=True)])  # fmt: skip
    message = pb.TableMutation(table_id=45, sequence=[pb.Insert] * 2, inserted_rows=[b"", b"\x02\x00\x00"])
    payloads, tables = [(7, as_payload(7, message))], Tables(table_def(table))
    assert decode_plainly(payloads, tables) == decode_in_lanes(payloads, tables)
    assert "cut short" in str(decode_plainly(payloads, tables))


@pytest.mark.parametrize("name", ["bank", "keys", "shard"])
def test_captures_decode_the_same(name: str) -> None:
    log = read_log(Capture(CAPTURES / name))
    for commit_ts, _, payload in log.transactions[::23]:
        place = log.schemas.find_schema_at(commit_ts)
        assert decode_in_lanes([(commit_ts, payload)], place) == decode_plainly([(commit_ts, payload)], place)  # type: ignore[arg-type]


def test_random_tables_cover_every_type() -> None:
    assert len({(kind.tp, kind.more.get("charset")) for kind in KINDS}) >= 28
