"""A large binlog that is read in pieces gives the rows, counts and errors of one held whole (S0-19 to S0-21)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from codec_tables import as_payload, damaged, random_mutation, random_table
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.tidb_json import INT_PK, Tables, column, table_def, table_info

from binlake.common.varint import write_uvarint
from binlake.errors import BinlakeError
from binlake.rows.codec import MutationBatch, MutationBuilder, largerows
from binlake.rows.codec import batch as batches
from binlake.rows.codec.largerows import Pieces, iterate_rows, list_mutations, read_field
from binlake.rows.codec.transaction import ALL_KINDS
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.wire import binlog_pb2 as pb

seeds = st.integers(0, 2**48).map(Random)
TS = 100


@pytest.fixture(autouse=True, scope="module")
def _few_rows() -> Iterator[None]:
    """Take few rows at a time, so that there are many borders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(largerows, "MOST_ROWS", 4)
        yield


def cut(payload: bytes, size: int) -> Pieces:
    def pieces(begin: int) -> Iterator[bytes]:
        yield from (payload[at : at + size] for at in range(begin, len(payload), size))

    return pieces


def read_whole(payload: bytes, tables: Tables, most: int = 1 << 20, **more: Any) -> tuple[Any, ...] | str:
    """The rows, taken `most` at a time, and the counts of skipped rows, or the error's text."""
    batch = MutationBatch(**more)
    try:
        batch.add(payload, TS, TS - 1, tables)
        return [row for taken in batch.take_batches(most) for row in taken.to_pylist()], batch.stats
    except BinlakeError as error:
        return str(error)


def read_large(payload: bytes, size: int, tables: Tables, **more: Any) -> tuple[Any, ...] | str | None:
    """The same from pieces of `size` bytes; None if the binlog has to be read whole."""
    pieces, batch = cut(payload, size), MutationBatch(**more)
    large = list_mutations(pieces)
    if large is None or not batch.may_add_large(large, tables):
        return None
    rows: list[Any] = []
    try:
        for _ in batch.add_large(large, pieces, TS, TS - 1, tables):
            rows += [row for taken in batch.take_batches() for row in taken.to_pylist()]
        rows += [row for taken in batch.take_batches() for row in taken.to_pylist()]
        return rows, batch.stats
    except BinlakeError as error:
        return str(error)


@settings(max_examples=examples(60), deadline=None)
@given(seeds)
def test_rows_and_counts_are_the_same(draw: Random) -> None:  # S0-19 S0-20 S0-21, S4-07
    one, two = random_table(draw), random_table(draw, 46)
    tables = Tables(one.definition, two.definition)
    count = draw.choice([1, 2, 3])
    mutations = [random_mutation(draw, draw.choice([one, two]), draw.choice([1, 5, 30])) for _ in range(count)]
    payload = as_payload(TS, *mutations)
    kinds = draw.choice([ALL_KINDS, {"insert"}, {"update", "delete"}, set()])

    def wanted(table: TableDef) -> Any:
        return kinds if table.id == 46 else ALL_KINDS

    found = read_large(payload, draw.choice([1, 7, 50, 500, 1 << 20]), tables, kinds=wanted)
    if found is not None:
        assert found == read_whole(payload, tables, kinds=wanted)
    else:
        assert sum(len(mutation.sequence) for mutation in mutations) == 1


@settings(max_examples=examples(100), deadline=None)
@given(seeds)
def test_damaged_binlogs_are_left_or_give_the_same(draw: Random) -> None:
    table = random_table(draw)
    tables = Tables(table.definition)
    payload = damaged(draw, as_payload(TS, random_mutation(draw, table, 12)))
    found = read_large(payload, draw.choice([7, 50, 1 << 20]), tables)
    whole = read_whole(payload, tables)
    # An error stops at the first bad row in both; rows before it may have been taken already.
    assert found is None or found == whole


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.sequence.pop(),
        lambda m: m.sequence.append(pb.DeletePK),
        lambda m: m.deleted_ids.append(1),
        lambda m: m.deleted_pks.append(b"x"),
        lambda m: m.MergeFromString(b"\x08\x07"),
        lambda m: m.ClearField("table_id"),
        lambda m: m.inserted_rows.pop(),
    ],
)
def test_unusual_mutations_are_left_to_the_reader_of_whole_ones(change: Any) -> None:
    table = keyed()
    builder = MutationBuilder(table).insert({"id": "1", "v": "a"}).update({"id": "1", "v": "a"}, {"id": "1", "v": "b"})
    message = builder.message
    change(message)
    payload = as_payload(TS, message)
    left = list_mutations(cut(payload, 10)) is None
    assert left or message.table_id == 7 or read_large(payload, 10, Tables(table)) == read_whole(payload, Tables(table))
    assert list_mutations(cut(payload + b"\x4a\x00", 10)) is None
    assert list_mutations(cut(payload[:-1], 10)) is None
    assert list_mutations(cut(b"", 10)) is None


def keyed(kind: int = t.VARCHAR) -> TableDef:
    columns = [column(1, "id", flag=INT_PK), column(2, "v", tp=kind, flen=65000, charset="utf8mb4")]
    return table_def(table_info(45, "t", columns, pk_is_handle=True))


def written_twice() -> bytes:
    """A binlog of 60 changes, most of them written a second time."""
    build = MutationBuilder(keyed())
    for number in range(40):
        row = {"id": str(number), "v": "x" * (number % 7)}
        for _ in range(1 + number % 3):
            build.insert(row)
    for number in range(20):
        before, after = {"id": str(number), "v": "x" * (number % 7)}, {"id": str(number), "v": "new"}
        build.update(before, after)
        if number % 2:
            build.delete(before)
        else:
            build.update(before, after)
    return as_payload(TS, build.message)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 1000])
def test_second_writes_at_the_beginning_of_a_batch_are_found(most: int) -> None:
    # TiDB logs a change twice while it reorganizes partitions, next to each other.
    whole = read_whole(written_twice(), Tables(keyed()))
    assert len(whole[0]) == 60
    assert read_whole(written_twice(), Tables(keyed()), most) == whole


@pytest.mark.parametrize("full", [1, 5, 1000])
@pytest.mark.parametrize("size", [13, 100, 10_000])
def test_second_writes_are_found_in_pieces(size: int, full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", full)
    whole = read_whole(written_twice(), Tables(keyed()))
    assert read_large(written_twice(), size, Tables(keyed())) == whole


def test_rows_of_unequal_size_and_lists_in_turns_stay_in_order() -> None:
    build = MutationBuilder(keyed())
    draw = Random(5)
    for number in range(300):
        row = {"id": str(number), "v": "x" * draw.choice([0, 3, 130, 17_000])}
        draw.choice([build.insert, build.delete])(row)
        if number % 3 == 0:
            build.update(row, {**row, "v": "y" * draw.choice([1, 20_000])})
    payload = as_payload(TS, build.message)
    assert read_large(payload, 5000, Tables(keyed())) == read_whole(payload, Tables(keyed()))


def test_rows_of_every_length_of_a_size_are_found() -> None:
    # A size of 16,384 to 16,511 has 0x80 as its second byte.
    build = MutationBuilder(keyed())
    for number, size in enumerate([*range(100, 140), *range(16_360, 16_400), *range(16_480, 16_520)]):
        build.insert({"id": str(number), "v": "x" * size})
    payload = as_payload(TS, build.message)
    whole = read_whole(payload, Tables(keyed()))
    assert len(whole[0]) == 120
    for size in (1000, 1 << 20):
        assert read_large(payload, size, Tables(keyed())) == whole


@pytest.mark.parametrize(
    "end",
    [
        bytes((0x38, pb.Insert, 0x38)),
        bytes((0x38, pb.Insert, 0x30, pb.Insert)),
        bytes((0x38, pb.Insert)),
        bytes((0x38, pb.Insert, 0x38, pb.Insert, 0x38, pb.Insert)),
        bytes((0x38, pb.Insert, 0x38, pb.DeleteRow)),
    ],
)
def test_a_sequence_that_is_not_that_of_the_lists_is_left_to_the_reader_of_whole_ones(end: bytes) -> None:
    message = MutationBuilder(keyed()).insert({"id": "1", "v": "a"}).insert({"id": "2", "v": "b"}).message
    good = message.SerializeToString()
    assert good.endswith(bytes((0x38, pb.Insert, 0x38, pb.Insert)))
    assert list_mutations(cut(binlog_payload(good), 9)) is not None
    assert list_mutations(cut(binlog_payload(good[:-4] + end), 9)) is None


@pytest.mark.parametrize("more", [1, 20, 1000])
def test_a_mutation_that_ends_after_its_binlog_is_left_to_the_reader_of_whole_ones(more: int) -> None:
    good = MutationBuilder(keyed()).insert({"id": "1", "v": "a" * 40}).message.SerializeToString()
    assert list_mutations(cut(binlog_payload(good), 9)) is not None
    assert list_mutations(cut(binlog_payload(good, size=len(good) + more), 9)) is None
    assert list_mutations(cut(binlog_payload(good, size=len(good) - more), 9)) is None


def binlog_payload(mutation: bytes, size: int | None = None) -> bytes:
    """A binlog with one mutation of these bytes, which says that it has `size` bytes (default: those)."""
    value = b"\x08\x05\x12" + write_uvarint(len(mutation) if size is None else max(size, 0)) + mutation
    return b"\x08\x00\x10\x01\x18\x02\x2a" + write_uvarint(len(value)) + value + b"\x38\x00\x40\x00"


def test_dropped_and_unknown_tables_are_as_in_whole_binlogs() -> None:
    build = MutationBuilder(keyed()).insert({"id": "1", "v": "a"}).insert({"id": "2", "v": "a"})
    payload = as_payload(TS, build.message, build.message)
    for tables in (Tables(gone=(45,)), Tables()):
        assert read_large(payload, 10, tables) == read_whole(payload, tables)


def test_a_mutation_can_be_read_alone() -> None:
    messages = [MutationBuilder(keyed()).insert({"id": str(n), "v": "a" * 50 * n}).message for n in range(4)]
    payload = as_payload(TS, *messages)
    large = list_mutations(cut(payload, 9))
    assert large is not None
    for mutation, message in zip(large.mutations, messages, strict=True):
        field = read_field(cut(payload, 9), mutation)
        assert pb.PrewriteValue.FromString(field).mutations[0] == message


def test_memory_follows_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:  # U-06
    monkeypatch.setattr(largerows, "MOST_ROWS", 1000)
    row = MutationBuilder(keyed()).insert({"id": "1", "v": "x" * 190}).message.inserted_rows[0]
    count = 20_000
    payload = as_payload(TS, pb.TableMutation(table_id=45, inserted_rows=[row] * count, sequence=[pb.Insert] * count))
    pieces = cut(payload, 100_000)
    tracemalloc.start()
    large = list_mutations(pieces)
    assert large is not None
    seen = 0
    for taken in iterate_rows(pieces, large.mutations[0]):
        seen += len(taken.kinds)
        assert taken.rows[pb.Insert].read_row(0) == row
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == count
    assert len(payload) > 4_000_000
    assert peak < 800_000
