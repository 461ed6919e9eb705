"""The rows of a large transaction are in a file while the log is read, and come back as they were (U-06)."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Collection
from pathlib import Path

import pytest
from support.binlogevents import Log, read_all, reader_of
from support.examples import seeds

from binlake.common import spool
from binlake.errors import BinlakeError
from binlake.mysqlbinlog.events import changes
from binlake.mysqlbinlog.events.changes import ChangeBuffer, SpooledChanges
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap

TABLES = [TableMap(number, "d", f"t{number}", b"\3", (0,), (True,)) for number in range(3)]


def draw_events(dice: random.Random) -> list[RowsEvent]:
    return [
        RowsEvent(
            dice.choice(list(RowKind)), dice.choice(TABLES), bytes(dice.randint(0, 2)), bytes(dice.randint(0, 2)),
            dice.randbytes(dice.choice((0, 1, 30, 300))), dice.random() < 0.5,
        )
        for _ in range(dice.randint(0, 60))
    ]  # fmt: skip


@pytest.mark.parametrize("seed", seeds(40))
def test_events_come_back_as_they_were(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(changes, "_BLOCK", dice.choice((1, 40, 1000)))
    monkeypatch.setattr(changes, "SPOOL_BYTES", dice.choice((0, 500, 1 << 20)))
    events = draw_events(dice)
    buffer = ChangeBuffer(tmp_path)
    for event in events:
        buffer.add(event)
    assert bool(buffer) is bool(events)
    taken = buffer.take()
    assert not buffer
    buffer.put(taken)
    again: Collection[RowsEvent] = buffer.take()
    assert (len(again), list(again), list(again)) == (len(events), events, events)
    assert list(tmp_path.iterdir()) == []  # its files have no names


@pytest.mark.parametrize(("limit", "is_spooled"), [(5, True), (6, False)])
def test_what_is_taken_can_be_put_back(
    limit: int, is_spooled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "SPOOL_BYTES", limit)
    one, two = (RowsEvent(RowKind.INSERT, TABLES[0], b"", b"", bytes([n]) * 3) for n in (1, 2))
    for _ in range(2):  # the second time it begins at zero again
        buffer = ChangeBuffer(tmp_path)
        for _ in range(2):
            buffer.add(one)
            buffer.add(two)
            taken = buffer.take()
            assert isinstance(taken, SpooledChanges) is is_spooled
        buffer.add(two)
        buffer.put(taken)
        again = buffer.take()
        assert (again is taken) is is_spooled
        assert list(again) == [one, two]
        assert one in again
        assert two in again
        assert RowsEvent(RowKind.DELETE, TABLES[0], b"", b"", b"") not in again


def test_events_can_be_added_after_reading(tmp_path: Path) -> None:
    spooled = SpooledChanges(tmp_path)
    events = [RowsEvent(RowKind.INSERT, TABLES[0], b"", b"", bytes([n])) for n in range(4)]
    for count, event in enumerate(events, 1):
        spooled.add(event)
        assert list(spooled) == events[:count]


def test_a_transaction_above_the_limit_is_in_a_file_and_the_next_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "SPOOL_BYTES", 40)
    log = Log()
    large = [log.gtid(), log.query("BEGIN"), log.table(), *map(log.insert, range(20)), log.xid()]
    first, second = read_all(reader_of(folder=tmp_path), [log.description(), *large, *log.inserted(7)])
    assert isinstance(first.changes, SpooledChanges)
    assert first.changes.folder == tmp_path
    assert [change.rows for change in first.changes] == [b"\0" + n.to_bytes(4, "little") for n in range(20)]
    assert isinstance(second.changes, tuple)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spooled = SpooledChanges(tmp_path)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spool.os, "pwrite", refuse)
    spooled.add(draw_events(random.Random(2))[0])
    with pytest.raises(BinlakeError, match=r"No space left.*folder") as error:
        list(spooled)
    assert str(tmp_path) in str(error.value)
