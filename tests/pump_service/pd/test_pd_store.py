"""The embedded etcd's store survives a crash, a full disk, a restart and a slow watcher."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c
import pytest

from binlake.errors import WireError
from binlake.pump_service.pd import kvstore, mvcc
from binlake.pump_service.pd.kvstore import KvStore
from binlake.wire import etcd_pb2 as pb

JOURNAL = "etcd.journal"


def put(store: KvStore, key: bytes, value: bytes = b"v", lease: int = 0) -> int:
    return store.put(pb.PutRequest(key=key, value=value, lease=lease)).header.revision


def state(store: KvStore, revision: int = 0) -> dict[bytes, bytes]:
    answer = store.read_range(pb.RangeRequest(key=b"\0", range_end=b"\0", revision=revision))
    return {kv.key: kv.value for kv in answer.kvs}


def reopened(store: KvStore, folder: Path) -> KvStore:
    store.close()
    return KvStore(folder)


def test_a_transaction_that_fails_half_way_changes_nothing(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    before = put(store, b"a", b"1")
    puts = [pb.PutRequest(key=b"a", value=b"2"), pb.PutRequest(key=b"b"), pb.PutRequest(key=b"c", lease=404)]
    with pytest.raises(KeyError, match="lease not found"):
        store.run_txn(pb.TxnRequest(success=[pb.RequestOp(request_put=one) for one in puts]))
    assert (state(store), store.revision) == ({b"a": b"1"}, before)
    assert state(reopened(store, tmp_path)) == {b"a": b"1"}


def test_a_failed_write_is_not_visible_and_no_later_write_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = KvStore(tmp_path)
    put(store, b"a", b"1")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(OSError, match="No space"):
            put(store, b"a", b"2")
    assert state(store) == {b"a": b"1"}
    with pytest.raises(OSError, match="restart"):
        put(store, b"a", b"3")


@pytest.mark.parametrize("tail", [b"E", b"E\xff\x00\x00\x00", b"\0" * 64], ids=["head", "body", "zeros"])
def test_a_torn_tail_is_cut_off_and_writing_continues(tmp_path: Path, tail: bytes) -> None:
    store = KvStore(tmp_path)
    put(store, b"a")
    store.close()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(tail)
    store = KvStore(tmp_path)
    put(store, b"b")
    assert state(reopened(store, tmp_path)) == {b"a": b"v", b"b": b"v"}


def test_damage_before_the_tail_is_an_error(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    put(store, b"a")
    put(store, b"b")
    store.close()
    data = bytearray((tmp_path / JOURNAL).read_bytes())
    data[12] ^= 1
    (tmp_path / JOURNAL).write_bytes(data)
    with pytest.raises(WireError, match="offset=0"):
        KvStore(tmp_path)


def test_history_survives_a_restart_and_ends_at_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = KvStore(tmp_path)
    first = put(store, b"a", b"1")
    put(store, b"a", b"2")
    store = reopened(store, tmp_path)
    _, events = store.wait_changes(first, b"a", b"", 0)
    assert [(event.kv.value, event.prev_kv.value) for event in events] == [(b"1", b""), (b"2", b"1")]
    assert state(store, first) == {b"a": b"1"}
    monkeypatch.setattr(kvstore, "COMPACT_BYTES", 0)
    store = reopened(store, tmp_path)
    last = put(store, b"b")
    store = reopened(store, tmp_path)
    assert (state(store), store.revision) == ({b"a": b"2", b"b": b"v"}, last)
    with pytest.raises(IndexError, match="compacted"):
        store.wait_changes(first, b"a", b"", 0)


def test_a_watcher_too_far_behind_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mvcc, "HISTORY", 3)
    store = KvStore(tmp_path)
    revisions = [put(store, b"a", b"%d" % n) for n in range(6)]
    with pytest.raises(IndexError, match="compacted"):
        store.wait_changes(revisions[2], b"a", b"", 0)
    _, events = store.wait_changes(revisions[3], b"a", b"", 0)
    assert [event.kv.mod_revision for event in events] == revisions[3:]


def test_no_crash_leaves_a_key_without_its_lease(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    lease = store.grant(pb.LeaseGrantRequest(TTL=60)).ID
    put(store, b"a", lease=lease)
    size = (tmp_path / JOURNAL).stat().st_size
    store.revoke(lease)
    store.close()
    whole = (tmp_path / JOURNAL).read_bytes()
    for end in range(size, len(whole) + 1):
        (tmp_path / JOURNAL).write_bytes(whole[:end])
        store = KvStore(tmp_path)
        left = store.read_time_to_live(pb.LeaseTimeToLiveRequest(ID=lease, keys=True))
        assert list(left.keys) == list(state(store)), f"cut at {end}"
        store.close()


def test_a_lease_gets_its_full_time_again_after_a_restart_and_then_expires(tmp_path: Path) -> None:
    now = [1000.0]
    store = KvStore(tmp_path, clock=lambda: now[0])
    put(store, b"a", lease=store.grant(pb.LeaseGrantRequest(TTL=10)).ID)
    now[0] += 9
    store.close()
    store = KvStore(tmp_path, clock=lambda: now[0])
    now[0] += 9
    store.expire()
    assert state(store) == {b"a": b"v"}
    now[0] += 1
    store.expire()
    assert state(store) == {}


@pytest.mark.long
def test_a_flipped_bit_is_an_error_and_cuts_nothing_off(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    for n in range(4):
        put(store, b"k%d" % n, b"value %d" % n)
    whole_state, journal = state(store), tmp_path / JOURNAL
    store.close()
    whole = journal.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            journal.write_bytes(whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :])
            with pytest.raises(WireError, match="--drop-damaged"):
                KvStore(tmp_path)
            assert journal.stat().st_size == len(whole), "the file was not cut"
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(WireError, match="--drop-damaged"):
            KvStore(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == open_files, "a journal that does not open is closed"
    journal.write_bytes(whole)
    assert state(KvStore(tmp_path)) == whole_state


def test_a_torn_tail_is_cut_off_and_all_entries_before_it_stay(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    journal = tmp_path / JOURNAL
    put(store, b"a", b"1" * 700)
    put(store, b"b", b"1" * 700)
    before, at = state(store), journal.stat().st_size
    put(store, b"c", b"2" * 1500)
    store.close()
    whole = journal.read_bytes()
    torn = [whole[:end] for end in range(at, len(whole), 7)]
    sector = (at // 512 + 1) * 512  # blocks that never reached the disk read as zeros
    torn += [whole[:sector] + bytes(len(whole) - sector), whole[:sector] + bytes(512) + whole[sector + 512 :]]
    for data in torn:
        journal.write_bytes(data)
        store = KvStore(tmp_path)
        assert state(store) == before
        put(store, b"d")
        again = reopened(store, tmp_path)
        assert state(again) == before | {b"d": b"v"}
        again.close()


def test_a_damaged_entry_is_dropped_by_command_and_later_entries_stay(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    first = (tmp_path / JOURNAL).stat().st_size
    lease = store.grant(pb.LeaseGrantRequest(TTL=60)).ID
    put(store, b"a", lease=lease)
    second = (tmp_path / JOURNAL).stat().st_size
    put(store, b"b")
    put(store, b"c")
    store.delete_range(pb.DeleteRangeRequest(key=b"b"))
    store.close()
    data = bytearray((tmp_path / JOURNAL).read_bytes())
    data[first + 10] ^= 1
    data[second + 10] ^= 1
    (tmp_path / JOURNAL).write_bytes(data)
    now = [1000.0]
    store = KvStore(tmp_path, clock=lambda: now[0], drop_damaged=True)
    assert state(store) == {b"a": b"v", b"c": b"v"}
    now[0] += 3600
    store.expire()
    assert state(store) == {b"c": b"v"}, "the lease whose entry was dropped still ends"
    assert state(reopened(store, tmp_path)) == {b"c": b"v"}, "the next start finds no damage"


def test_a_failed_snapshot_does_not_fail_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvstore, "COMPACT_BYTES", 0)
    store = KvStore(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("binlake.pump_service.pd.journal.replace_file", full)
        put(store, b"a", b"1")
    put(store, b"b", b"2")
    assert state(reopened(store, tmp_path)) == {b"a": b"1", b"b": b"2"}


def test_a_journal_of_the_previous_version_is_read(tmp_path: Path) -> None:
    event = pb.Event(kv=pb.KeyValue(key=b"a", value=b"1", create_revision=2, mod_revision=2, version=1))
    body = pb.WatchResponse(header=pb.ResponseHeader(revision=2), events=[event]).SerializeToString()
    (tmp_path / JOURNAL).write_bytes(struct.pack("<cII", b"E", len(body), google_crc32c.value(body)) + body)
    assert state(KvStore(tmp_path)) == {b"a": b"1"}
