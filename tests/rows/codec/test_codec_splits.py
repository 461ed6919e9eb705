"""Splitting many small binlogs at once equals splitting them one by one: the same rows and counts, or the same
error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from codec_golden import read_log
from codec_tables import as_payload, damaged, each, random_mutation, random_table
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.tidb_json import Tables

from binlake.errors import BinlakeError
from binlake.rows.codec import MutationBatch, batch
from binlake.rows.codec.lanes import Lanes
from binlake.rows.codec.splits import split_all
from binlake.rows.codec.transaction import ALL_KINDS
from binlake.rows.schema import TableDef
from binlake.testkit.captures.capture import Capture
from binlake.wire import binlog_pb2 as pb

CAPTURES = Path(__file__).parents[2] / "captures"
seeds = st.integers(0, 2**48).map(Random)
Payloads = list[tuple[int, bytes]]


@pytest.fixture(autouse=True, scope="module")
def _neighbours() -> Iterator[None]:
    """Split even few binlogs together; otherwise one unusual binlog would make all of them go one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "_FEWEST_NEIGHBOURS", 1)
        yield


def outcome(payloads: Payloads, place: Any, *, together: bool, **more: Any) -> tuple[Any, ...] | str:
    """The rows and the counts of skipped rows, or the error's text."""
    found = MutationBatch(**more)
    try:
        if together:
            times = np.asarray([ts for ts, _ in payloads], np.int64)
            found.add_all([payload for _, payload in payloads], times, times - 1, each(place))
        else:
            for ts, payload in payloads:
                found.add(payload, ts, ts - 1, place(ts))
        full = found.is_full
        return [row for taken in found.take_batches() for row in taken.to_pylist()], found.stats, full
    except BinlakeError as error:
        return str(error)


def same(payloads: Payloads, place: Any, **more: Any) -> bool:
    """Whether both ways give the same."""
    return outcome(payloads, place, together=True, **more) == outcome(payloads, place, together=False, **more)


def random_payloads(draw: Random, one: Any, two: Any, count: int) -> Payloads:
    """Binlogs with up to three mutations of up to five rows."""
    return [
        (ts, as_payload(ts, *(random_mutation(draw, draw.choice([one, two]), draw.choice([0, 1, 1, 5]))
                              for _ in range(draw.choice([0, 1, 1, 3])))))
        for ts in range(100, 100 + count)
    ]  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(seeds)
def test_intact_binlogs_are_all_split_together(draw: Random) -> None:  # S0-19 S0-20 S0-21
    one, two = random_table(draw), random_table(draw, 46)
    tables = Tables(one.definition, two.definition)
    payloads = random_payloads(draw, one, two, 8)
    assert split_all(Lanes.of([payload for _, payload in payloads])).good.all()
    assert same(payloads, lambda _: tables)


@settings(max_examples=examples(40), deadline=None)
@given(seeds)
def test_filtered_rows_are_counted_the_same(draw: Random) -> None:  # S4-07
    one, two = random_table(draw), random_table(draw, 46)
    tables = Tables(one.definition, two.definition)

    def route(table: TableDef) -> tuple[str, str] | None:
        return ("x", "y") if table.id == 45 or draw_two else None

    draw_two = draw.random() < 0.5
    kinds = draw.choice([ALL_KINDS, {"insert"}, set()])
    payloads = random_payloads(draw, one, two, 8)
    assert same(payloads, lambda _: tables, route=route, kinds=lambda table: kinds if table.id == 46 else ALL_KINDS)


@settings(max_examples=examples(150), deadline=None)
@given(seeds)
def test_damaged_binlogs_decode_or_fail_the_same(draw: Random) -> None:
    one, two = random_table(draw), random_table(draw, 46)
    tables = Tables(one.definition, two.definition)
    payloads = random_payloads(draw, one, two, 5)
    for _ in range(draw.choice([1, 1, 2])):
        at = draw.randrange(len(payloads))
        payloads[at] = (payloads[at][0], damaged(draw, payloads[at][1]))
    assert same(payloads, lambda _: tables)


def test_unusual_binlogs_are_split_alone() -> None:  # S0-20
    draw = Random(1)
    table = random_table(draw)
    tables = Tables(table.definition)
    whole = as_payload(7, random_mutation(draw, table, 2))
    value = pb.Binlog.FromString(whole).prewrite_value
    packed = pb.TableMutation(table_id=45).SerializeToString() + b"\x3a\x00"
    odd = [
        b"", pb.Binlog(tp=pb.Commit).SerializeToString(), whole + b"\x4a\x00", whole + whole, whole[:-1],
        pb.Binlog(prewrite_value=value + pb.PrewriteValue(schema_version=9).SerializeToString()).SerializeToString(),
        pb.Binlog(prewrite_value=value[2:]).SerializeToString(),
        as_payload(7, pb.TableMutation(table_id=45, deleted_ids=[1])), as_payload(7, pb.TableMutation()),
        as_payload(7, pb.TableMutation(table_id=45, sequence=[pb.Insert])),
        pb.Binlog(prewrite_value=b"\x08\x09\x12%c%s" % (len(packed), packed)).SerializeToString(),
        as_payload(7, *[pb.TableMutation(table_id=45)] * 200),
    ]  # fmt: skip
    assert split_all(Lanes.of([whole, *odd])).good.tolist() == [True] + [False] * len(odd)
    for one in odd:
        assert same([(7, whole), (8, one), (9, whole)], lambda _: tables)
    # Tables that are dropped, or unknown at one of two positions.
    other = Tables(gone=(45,))
    assert same([(7, whole), (8, whole), (9, whole)], lambda ts: other if ts == 8 else tables)


@pytest.mark.long
@pytest.mark.parametrize("name", ["bank", "keys"])
def test_captures_split_the_same(name: str) -> None:
    log = read_log(Capture(CAPTURES / name))
    payloads = [(commit_ts, payload) for commit_ts, _, payload in log.transactions[::7]]
    assert split_all(Lanes.of([payload for _, payload in payloads])).good.mean() > 0.9
    assert same(payloads, log.schemas.find_schema_at)
