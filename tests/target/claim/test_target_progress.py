"""How a target's progress is read: for which cluster, under which lock, and what a missing key means."""

from __future__ import annotations

from contextlib import closing

import pytest
from support.mariadb import MariaDb, execute
from support.windows import CLUSTER, NAME, Window, apply

from binlake.config.servers import TargetSection
from binlake.errors import TargetBusy, TargetRefused
from binlake.target import Checkpoint, TargetSession
from binlake.target.claim.checkpoint import CheckpointTable
from binlake.target.claim.progress import TargetProgress, WindowLedger, read_open_progress, write_progress

SCHEMA = "tidb_binlog"
OPENED = TargetProgress("shop", 1, 100, 200, "m", 200, segment=3)


def test_checkpoint_without_consistent_is_inconsistent() -> None:
    assert not Checkpoint.from_json('{"commitTS": 7}').consistent


def test_window_is_open_only_with_both_of_its_bounds() -> None:
    assert OPENED.window == (100, 200)
    assert TargetProgress("shop", 1, None, 200, None, 200).window is None
    assert TargetProgress("shop", 1, 100, None, None, 200).window is None


def test_window_after_a_closed_one_starts_with_its_first_segment() -> None:
    closed = OPENED.with_intent(150, "ALTER", "b", "e").with_window_closed()
    assert closed == TargetProgress("shop", 1, None, None, None, 200, segment=0)


@pytest.mark.mariadb
def test_open_window_is_read_for_its_own_cluster(target: TargetSection) -> None:
    apply(target, Window(0, 100).put((1, "a")))
    with closing(TargetSession(target)) as session:
        for number in (CLUSTER + 1, CLUSTER + 2):
            write_progress(session, SCHEMA, TargetProgress(f"other-{number}", number, 100, 200, "m", 200))
        session.commit()
        for number in (CLUSTER + 1, CLUSTER + 2):
            opened = read_open_progress(session, SCHEMA, number)
            assert opened is not None
            assert opened.cluster_id == number
        assert read_open_progress(session, SCHEMA, CLUSTER) is None
        own = read_open_progress(session, SCHEMA, 0, f"other-{CLUSTER + 2}")
        assert own is not None
        assert own.cluster_id == CLUSTER + 2


@pytest.mark.mariadb
def test_checkpoint_read_with_a_lock_cannot_move(target: TargetSection) -> None:
    apply(target, Window(0, 100).put((1, "a")))
    table = CheckpointTable(SCHEMA, CLUSTER)
    with closing(TargetSession(target)) as reader, closing(TargetSession(target)) as writer:
        writer.execute("SET SESSION innodb_lock_wait_timeout = 1")
        for lock in (False, True):
            reader.begin()
            checkpoint = table.read(reader, lock=lock)
            assert checkpoint is not None
            writer.begin()
            if lock:
                with pytest.raises(TargetBusy):
                    table.write(writer, checkpoint)
            else:
                table.write(writer, checkpoint)
            writer.rollback()
            reader.rollback()


@pytest.mark.mariadb
def test_table_in_another_form_is_refused_and_not_taken_for_missing(server: MariaDb, target: TargetSection) -> None:
    execute(server, "CREATE DATABASE tidb_binlog", "CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT)")
    with closing(TargetSession(target)) as session, pytest.raises(TargetRefused):
        CheckpointTable(SCHEMA, CLUSTER).read(session)


@pytest.mark.mariadb
def test_single_ledger_batch_is_read(target: TargetSection) -> None:
    apply(target, Window(0, 100).put((1, "a")).log("line"))
    ledger = WindowLedger(SCHEMA, NAME, 0, 100)
    with closing(TargetSession(target)) as session:
        every = ledger.read_digests(session, 0)
        assert len(every) > 1
        for place, digest in every.items():
            assert ledger.read_digests(session, 0, place) == {place: digest}
