"""Reading a binlog's head and splicing C from P equals parsing and serialising with protobuf (MISSION S0-14, S0-53)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pump_helpers import commit as commit_of
from pump_helpers import prewrite as prewrite_of
from pump_helpers import pulled, reach, store
from support.examples import examples

from binlake.errors import WireError
from binlake.pump_service.pump.heads import (
    PROOF,
    Head,
    complete,
    normalise,
    parse_entries,
    parse_entry,
    parse_head,
    parse_layout,
)
from binlake.pump_service.pump.ranges import StretchBytes, read_block
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.sorter import EntryKind
from binlake.pump_service.pump.storage import PumpStorage
from binlake.pump_service.pump.vlog import LogOptions, ValueLog
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog, Commit, Prewrite, Rollback

int64 = st.integers(-(2**63), 2**63 - 1)
stamps = st.one_of(st.integers(0, 5), st.integers(470614287839920132, 470614287839930000), int64)
values = st.one_of(st.binary(max_size=40), st.binary(min_size=120, max_size=140), st.just(b"v" * 70_000))


@st.composite
def binlogs(draw: st.DrawFn, tp: int | None = None) -> Binlog:
    """Any binlog: as Go writes it, or with fields left out."""
    binlog = Binlog()
    fields = {
        "tp": st.sampled_from([Prewrite, Commit, Rollback, 3, 4]) if tp is None else st.just(tp),
        "start_ts": stamps,
        "commit_ts": stamps,
        "prewrite_key": st.binary(max_size=30),
        "prewrite_value": values,
        "ddl_query": st.binary(max_size=30),
        "ddl_job_id": st.one_of(st.integers(0, 3), int64),
        "ddl_schema_state": st.one_of(st.integers(0, 6), st.integers(-(2**31), 2**31 - 1)),
    }
    optional = ("prewrite_key", "prewrite_value", "ddl_query")
    sparse = draw(st.booleans())
    for name, strategy in fields.items():
        if not (draw(st.booleans()) if sparse or name in optional else False):
            setattr(binlog, name, draw(strategy))
    return binlog


@st.composite
def payloads(draw: st.DrawFn, tp: int | None = None) -> bytes:
    """A serialised binlog, sometimes with features that protobuf tolerates: unknown fields, other orders, repeated
    fields."""
    payload = draw(binlogs(tp)).SerializeToString()
    for extra in draw(
        st.lists(st.sampled_from([PROOF, b"\x7a\x02hi", b"\x38\x07", b"\x18\x05", b"\x2a\x01z"]), max_size=2)
    ):
        payload = extra + payload if draw(st.booleans()) else payload + extra
    return payload


def reference(commit: Binlog, prewrite: Binlog) -> bytes:
    """The rule, implemented with protobuf."""
    for name in ("prewrite_value", "ddl_query"):
        commit.ClearField(name)
        if prewrite.HasField(name):
            setattr(commit, name, getattr(prewrite, name))
    commit.ddl_job_id, commit.ddl_schema_state = prewrite.ddl_job_id, prewrite.ddl_schema_state
    unknown = Binlog()
    unknown.CopyFrom(prewrite)
    for field in Binlog.DESCRIPTOR.fields_by_name:
        unknown.ClearField(field)
    return commit.SerializeToString() + unknown.SerializeToString()


@pytest.mark.parametrize("value", [b"v", b"v" * 70_000])
def test_an_unknown_field_of_the_prewrite_is_pulled(tmp_path: Path, value: bytes) -> None:  # S1-03
    unknown = bytes([99 << 3 & 0x7F | 0x80, 99 << 3 >> 7, 7])
    storage = PumpStorage(tmp_path)
    storage.append(prewrite_of(10, value).SerializeToString() + unknown).result(60)
    store(storage, commit_of(10, 20))
    reach(storage, 20)
    ((_, _, payload),) = pulled(storage, 1)
    assert [(field.field_number, field.data) for field in UnknownFieldSet(Binlog.FromString(payload))] == [(99, 7)]
    assert Binlog.FromString(payload).prewrite_value == value
    storage.close()


@given(payloads(Commit), payloads(Prewrite))
@settings(deadline=None)  # a busy machine is no failure
def test_a_completed_commit_equals_the_one_built_with_protobuf(commit: bytes, prewrite: bytes) -> None:
    # S0-14, S0-53
    assert complete(commit, prewrite) == reference(Binlog.FromString(commit), Binlog.FromString(prewrite))


@given(payloads())
@settings(deadline=None)
@example(b"\x08\x00\x10\x81\x00\x18\x00\x38\x00\x40\x00")  # a varint in a longer form than needed
@example(b"\x08\x00\x10\x05\x18\x00\x38\x00\x40\x80\x80\x80\x80\x10")  # a state of 33 bits
def test_a_payload_has_a_layout_only_if_protobuf_would_write_it_the_same(payload: bytes) -> None:
    layout = parse_layout(payload)
    binlog = Binlog.FromString(payload)
    if layout is None:
        return
    assert binlog.SerializeToString() == payload
    assert (layout.tp, layout.start_ts, layout.commit_ts) == (binlog.tp, binlog.start_ts, binlog.commit_ts)
    assert layout.key == binlog.prewrite_key
    tail = Binlog.FromString(payload[layout.cut :])
    assert (tail.prewrite_value, tail.ddl_query) == (binlog.prewrite_value, binlog.ddl_query)


@given(binlogs(), st.binary(max_size=10))
@settings(deadline=None)
def test_arbitrary_bytes_are_read_correctly_or_refused(binlog: Binlog, noise: bytes) -> None:
    for payload in (binlog.SerializeToString(), binlog.SerializeToString()[:-1] + noise):
        try:
            parsed = Binlog.FromString(payload)
        except DecodeError:
            assert parse_layout(payload) is None
            with pytest.raises(WireError):
                normalise(payload)
            continue
        head, normalised = normalise(payload)
        assert (head.start_ts, head.commit_ts) == (parsed.start_ts, parsed.commit_ts)
        build.emit_always(parsed)
        assert Binlog.FromString(normalised) == parsed
        assert parse_head(normalised) == head


def test_heads_of_large_and_small_payloads_are_the_same() -> None:
    # S0-07: large values are neither parsed nor copied.
    for value in (b"x", b"x" * 100_000):
        payload = build.build_prewrite(10, b"key", value).SerializeToString()
        head, normalised = normalise(payload)
        assert (head, normalised is payload) == (Head(EntryKind.PREWRITE, 10, 0, b"key"), True)


def test_a_proven_rollback_is_distinguished_from_a_writers() -> None:
    #
    plain = build.build_rollback(build.build_prewrite(10, b"k"))
    assert parse_head(plain.SerializeToString()).kind is EntryKind.ROLLBACK
    assert parse_head(plain.SerializeToString() + PROOF).kind is EntryKind.PROVEN_ROLLBACK
    # other readers keep the field
    assert Binlog.FromString(plain.SerializeToString() + PROOF).SerializeToString().endswith(PROOF)


def rows_of(block: StretchBytes) -> list[tuple[Any, ...]]:
    return list(zip(*(column.tolist() for column in block[1:]), strict=True))


@given(st.lists(payloads(), min_size=1, max_size=12), st.randoms(use_true_random=False), st.integers(100, 200_000))
@settings(max_examples=examples(60), deadline=None)
def test_rows_of_a_block_equal_the_layouts_of_its_records(
    tmp_path_factory: pytest.TempPathFactory, found: list[bytes], chance, limit: int
) -> None:
    # S0-52
    folder: Path = tmp_path_factory.mktemp("block")
    log = ValueLog(folder, LogOptions(segment_bytes=400))
    found = [payload or normalise(payload)[1] for payload in found]  # as the pump stores it
    places = [log.append([payload], 1)[0] for payload in found]
    order = list(range(len(found)))
    chance.shuffle(order)
    block = read_block([places[one].to_bytes() for one in order], log, limit)
    rows = rows_of(block)
    assert 1 <= len(rows) <= len(found)
    for (plain, begin, cut, end, _, _, *fields), one in zip(rows, order, strict=False):
        layout = parse_layout(found[one])
        if plain:
            assert layout is not None
            assert block.data[begin:end] == found[one]
            assert tuple(fields) == layout[:3]
            assert cut - begin == layout.cut
    log.close()


def test_payloads_that_tidb_writes_are_plain(tmp_path: Path) -> None:
    # S0-52: the fast path is the usual one.
    start = 470614287839920132
    prewrite = build.build_prewrite(start, b"key" * 9, b"v" * 300)
    usual = [
        prewrite,
        build.build_commit(prewrite, start + 9),
        build.build_rollback(prewrite),
        build.build_fake(start + 10),
    ]
    payloads = [binlog.SerializeToString() for binlog in usual]
    log = ValueLog(tmp_path)
    places = log.append(payloads, start)
    block = read_block([place.to_bytes() for place in places], log, 1 << 20)
    assert block.plain.tolist() == [True] * 4
    assert all(parse_layout(payload) for payload in payloads)


def test_numbers_of_every_size_are_read_in_columns(tmp_path: Path) -> None:
    # S0-52
    numbers = sorted({1, *(power + step for bits in range(7, 63, 7) for power in (1 << bits,) for step in (-1, 0, 1))})
    log = ValueLog(tmp_path)
    payloads = [
        build.build_commit(build.build_prewrite(ts, b"k"), ts + 1).SerializeToString()
        for ts in [*numbers, (1 << 63) - 2]
    ]
    places = log.append(payloads, numbers[-1])
    rows = rows_of(read_block([place.to_bytes() for place in places], log, 1 << 20))
    assert [row[0] for row in rows] == [True] * len(payloads)
    assert [row[7:] for row in rows] == [(ts, ts + 1) for ts in [*numbers, (1 << 63) - 2]]


def test_a_damaged_record_yields_no_plain_row(tmp_path: Path) -> None:
    log = ValueLog(tmp_path)
    places = log.append([build.build_fake(ts).SerializeToString() for ts in range(1, 10)], 9)
    with (tmp_path / "000000.vlog").open("r+b") as file:
        file.seek(places[4].offset)
        file.write(b"\xff" * 12)
    rows = rows_of(read_block([place.to_bytes() for place in places], log, 1 << 20))
    assert [row[0] for row in rows] == [True] * 4 + [False] + [True] * 4
    gone = [Pointer(7, 0).to_bytes()]
    with pytest.raises(Exception, match=r"000007\.vlog"):
        read_block(gone, log, 1 << 20)


@given(st.lists(payloads(), min_size=1, max_size=12))
@settings(max_examples=examples(60), deadline=None)
@example([bytes.fromhex("08001000180022002a00320038004000")] * 5 + [b""])  # once: "a record is incomplete"
def test_entries_read_in_columns_equal_those_read_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, found: list[bytes]
) -> None:
    log = ValueLog(tmp_path_factory.mktemp("entries"), LogOptions(segment_bytes=400))
    long_key = build.build_prewrite(7, b"k" * 200, b"v").SerializeToString()
    for payload in (*found, long_key):
        if payload:
            log.append([payload], 1)
            continue
        end = log.end
        with pytest.raises(WireError, match="without a byte"):
            log.append([payload], 1)  # read as the end of the records, so that all after it would be lost
        assert log.end == end
    single = [parse_entry(pointer, payload) for pointer, payload in log.scan_from(Pointer(0, 0))]
    assert [one for fid, stretch in log.scan_stretches(Pointer(0, 0)) for one in parse_entries(fid, stretch)] == single
    log.close()
