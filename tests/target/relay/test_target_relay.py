"""A crash with relay files: whatever was applied before, target and files together give exactly the whole window."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from support.children import wait_for_exit
from support.mariadb import MariaDb, execute, rows
from support.windows import NAME, Crash, Window, apply, apply_in_child, at, signal_me

from binlake.config import Replication
from binlake.config.servers import TargetSection
from binlake.errors import LostRange, Transient
from binlake.target.recover import finish_from_relay, judge_recovery, require_consistent
from binlake.target.relay import RelayLog
from binlake.target.relay.files import list_files

if TYPE_CHECKING:
    from deploy.local.s3 import S3

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]


def window() -> Window:
    """Two segments, 20 batches of rows: moved values of a unique key, equal keyless rows, a DDL in between."""
    found = Window(100, 300).delete(1, 2).unlog("old")
    for key in range(3, 9):
        found.put((key, f"v{key}"), verify=True)
    found.log("same").log("same").log("other")
    found.ddl(200, "ALTER TABLE t ADD COLUMN w INT DEFAULT 5", [("app", "t")], repeatable=False)
    found.delete(3).unlog("same").unlog("other")
    for key in range(4, 9):
        found.put((key, f"w{key - 1}"))
    return found.log("last")


BATCHES = 20
END = (
    [(4, "w3", 5), (5, "w4", 5), (6, "w5", 5), (7, "w6", 5), (8, "w7", 5)],
    [("last",), ("same",)],
)


def state(server: MariaDb) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    return rows(server, "SELECT * FROM app.t ORDER BY id"), rows(server, "SELECT line FROM app.log ORDER BY line")


@pytest.fixture
def replication(target: TargetSection, tmp_path: Path) -> Replication:
    """A source that is gone, no lake, small relay files, mode parallel."""
    (tmp_path / "relay").mkdir()
    section = target.model_copy(update={"mode": "parallel", "worker_count": 3}).model_dump(by_alias=True)
    return Replication.model_validate({
        "name": NAME,
        "source": {"pd-urls": ["http://127.0.0.1:1"], "status-url": "http://127.0.0.1:1", "timeout-s": 0.1},
        "lake": {"path": "/nowhere"},
        "target": section,
        "relay": {"log-dir": str(tmp_path / "relay"), "max-file-size": 1000},
    })  # fmt: skip


def relay_of(replication: Replication) -> tuple[TargetSection, RelayLog]:
    relay = RelayLog.of(replication)
    assert relay is not None
    assert replication.target is not None
    return replication.target, relay


@pytest.mark.parametrize("position", range(1, BATCHES + 1))
def test_kill_at_any_statement_is_recovered_from_target_and_files(
    server: MariaDb, replication: Replication, position: int
) -> None:
    # S3-02, S3-20, S3-21, R-17, R-62: kill -9 in the n-th batch, recovered twice
    target, relay = relay_of(replication)
    execute(
        server,
        "ALTER TABLE app.t ADD UNIQUE KEY (v)",
        "INSERT INTO app.t VALUES (1, 'w3'), (2, 'w4')",
        "INSERT INTO app.log VALUES ('old')",
    )
    pid = apply_in_child(target, window(), at("batch", position, signal_me(signal.SIGKILL)), relay)
    assert wait_for_exit(pid) == -signal.SIGKILL
    assert state(server) != END
    for _ in range(2):
        verdict = judge_recovery(replication)
        if verdict.state == "recover":
            finish_from_relay(replication, verdict)
        assert state(server) == END
        checkpoint, aside = require_consistent(replication, "the window is finished")
        assert (checkpoint.commit_ts, aside) == (300, {})
    assert verdict.state == "nothing-to-do"


@pytest.mark.process
def test_kill_is_recovered_from_an_object_store(server: MariaDb, replication: Replication, s3: S3) -> None:
    # S3-09
    s3.create_bucket("relay")
    access = f"endpoint={quote(s3.url, safe='')}&region=us-east-1&access-key=any&secret-access-key=any"
    section = {"log-dir": f"s3://relay/{server.port}?{access}", "max-file-size": 1000}
    own = Replication.model_validate({**replication.model_dump(by_alias=True), "relay": section})
    target, relay = relay_of(own)
    execute(server, "INSERT INTO app.log VALUES ('old')")

    def crash() -> None:
        raise Crash

    with pytest.raises(Crash):
        apply(target, window(), at("batch", 9, crash), relay)
    assert state(server) != END
    finish_from_relay(own, judge_recovery(own))
    assert state(server) == END
    assert len(relay.storage.list_finished_files()) == 1


def test_relay_is_complete_before_the_first_write_and_deleted_after_the_last(
    server: MariaDb, replication: Replication
) -> None:
    # S3-08, S3-15, S3-17: checked from the opening of the window
    target, relay = relay_of(replication)
    assert not relay.storage.folder.exists()
    seen: list[object] = []

    def look() -> None:
        found = relay.find_window((100, 300), window().manifest().compute_digest())
        seen.append(
            sum(1 for plan in found.list_segments() for phase in (1, 2) for _ in found.read_batches(plan.number, phase))
        )

    execute(server, "INSERT INTO app.log VALUES ('old')")
    apply(target, window(), at("opened", 1, look), relay)
    assert seen == [BATCHES]
    assert len(list_files(relay.storage.folder)) == 1
    assert state(server) == END


def test_full_disk_stops_before_the_target_is_written(server: MariaDb, replication: Replication) -> None:
    # S3-08: files are limited to 2000 bytes; the window needs more
    target, relay = relay_of(replication)
    relay = RelayLog(relay.storage, 10_000)
    apply(target, Window(0, 100).put((1, "w3")))
    before = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint"), state(server)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(Transient, match="cannot be written"):
            apply(target, window(), relay=relay)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint"), state(server)) == before
    assert rows(server, "SELECT open_lo FROM tidb_binlog.binlake_progress") == [(None,)]
    assert list_files(relay.storage.folder) == []


def test_lost_relay_file_is_reported_before_any_write(server: MariaDb, replication: Replication) -> None:
    # S3-13
    target, relay = relay_of(replication)
    execute(server, "INSERT INTO app.log VALUES ('old')")
    pid = apply_in_child(target, window(), at("batch", 7, signal_me(signal.SIGKILL)), relay)
    assert wait_for_exit(pid) == -signal.SIGKILL
    files = list_files(relay.storage.folder)
    assert len(files) > 3
    files[2].path.unlink()
    before = state(server), rows(server, "SELECT * FROM tidb_binlog.binlake_fence")
    with pytest.raises(LostRange, match="100-300"):
        finish_from_relay(replication, judge_recovery(replication))
    assert (state(server), rows(server, "SELECT * FROM tidb_binlog.binlake_fence")) == before


def test_window_opened_without_files_gets_them_when_resumed(server: MariaDb, replication: Replication) -> None:
    # S3-17: log-dir was set between the two runs
    target, relay = relay_of(replication)
    execute(server, "INSERT INTO app.log VALUES ('old')")
    pid = apply_in_child(target, window(), at("batch", 3, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    pid = apply_in_child(target, window(), at("batch", 3, signal_me(signal.SIGKILL)), relay)
    assert wait_for_exit(pid) == -signal.SIGKILL
    finish_from_relay(replication, judge_recovery(replication))
    assert state(server) == END
