"""Which work a retry repeats, where the checkpoint is meanwhile, and how many connections are used."""

from __future__ import annotations

import threading

import pytest
from pydantic import ValidationError
from support.mariadb import MariaDb, rows
from support.windows import Crash, Window, apply, at, wait_until

from binlake.config.servers import TargetSection
from binlake.target import read_position

pytestmark = pytest.mark.mariadb


def build_window(count: int = 30) -> Window:
    found = Window(0, 100)
    for key in range(count):
        found.put((key, "v"), verify=True)
    return found


def crash() -> None:
    raise Crash


def test_retry_executes_only_batches_not_in_the_ledger(server: MariaDb, target: TargetSection) -> None:
    # S4-32: progress is durable with every batch, so no interval is needed
    parallel = target.model_copy(update={"mode": "parallel", "worker_count": 1})
    with pytest.raises(Crash):
        apply(parallel, build_window(), at("batch", 21, crash))
    [(stored,)] = rows(server, "SELECT COUNT(*) FROM tidb_binlog.binlake_ledger")
    assert stored == 20
    assert apply(parallel, build_window()).batches == 10


def test_checkpoint_waits_for_the_slowest_connection(server: MariaDb, target: TargetSection) -> None:
    # S4-33, S4-34: later batches of other connections do not move the checkpoint, and `consistent` is false
    slow, seen = threading.Lock(), []

    def hook(step: str) -> None:
        if step == "batch" and slow.acquire(blocking=False):
            done = "SELECT COUNT(*) FROM tidb_binlog.binlake_ledger"
            wait_until(lambda: rows(server, done) == [(29,)])
            seen.extend(rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint"))

    apply(target.model_copy(update={"mode": "parallel", "worker_count": 3}), build_window(), hook)
    assert seen == [('{"consistent":false,"commitTS":0,"ts-map":{}}',)]
    assert read_position(target, "shop", 0).commit_ts == 100


def test_worker_count_is_the_number_of_connections(target: TargetSection) -> None:  # S4-30
    together, users = threading.Barrier(3, timeout=120), set()

    def hook(step: str) -> None:
        if step == "batch":
            together.wait()
            users.add(threading.current_thread().name)

    apply(target.model_copy(update={"mode": "parallel", "worker_count": 3}), build_window(9), hook)
    assert len(users) == 3
    with pytest.raises(ValidationError):
        TargetSection(**{"worker-count": 0})  # type: ignore[arg-type]
    assert TargetSection().worker_count == 16  # type: ignore[call-arg]
