"""Bad input and broken parts: one clear error each, no traceback in the message, and the checkpoint does not move."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.live import LiveSource
from support.mariadb import MariaDb, rows
from test_e2e_window import Make, run, set_up, some_changes, toml

from binlake.spark_jobs.commands.main import run_job
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

pytestmark = [pytest.mark.spark, pytest.mark.mariadb, pytest.mark.e2e]


def outcome(folder: Path, replication: dict[str, Any], stage: str = "window", *more: str) -> dict[str, str]:
    """The error of one job."""
    config = folder / "bad.toml"
    config.write_text(toml(replication))
    found = run_job([stage, "--replication", str(config), *more])
    assert not found["ok"], found
    error: dict[str, str] = found["error"]
    assert "Traceback" not in error["message"]
    assert "\n" not in error["message"]
    return error


@pytest.fixture
def good(source: LiveSource, context: Make, target: dict[str, Any]) -> dict[str, Any]:
    """A replication that has applied a window."""
    set_up(source.workload)
    ctx = context(target=target)
    run(ctx, source)
    some_changes(source.workload, 1)
    source.settle()
    return ctx.replication.model_dump(mode="json", by_alias=True, exclude_none=True)


def position(server: MariaDb) -> list[tuple[Any, ...]]:
    return rows(server, "SELECT * FROM tidb_binlog.checkpoint")


def test_each_fault_is_one_clear_error_and_moves_nothing(
    good: dict[str, Any], source: LiveSource, tmp_path: Path, mariadb: MariaDb
) -> None:  # S0-72, U-07
    before = position(mariadb)
    assert len(before) == 1
    faults: list[tuple[str, str, object, str, str]] = [
        ("source", "cluster-id", "5", "Permanent", "expected 5"),
        ("source", "pd-urls", ["http://127.0.0.1:1"], "Transient", "PD cannot be reached"),
        ("target", "port", 1, "Transient", "127.0.0.1"),
        ("target", "password", "wrong", "Permanent", "root"),
        ("target", "pasword", "x", "Permanent", "did you mean `password`?"),
    ]
    for section, key, value, kind, text in faults:
        # A run may have landed everything; without more data, the next run has no window that could fail.
        source.settle()
        allowed = {"plain-passwords": ["target.password"]}
        found = outcome(tmp_path, {**good, **allowed, section: {**good[section], key: value}})
        assert (found["kind"], text in found["message"]) == (kind, True), found
        assert "Hint: " in found["message"], found
    assert position(mariadb) == before


def test_corrupt_payload_and_unknown_table_are_named_with_their_commit_ts(
    good: dict[str, Any], source: LiveSource, tmp_path: Path, mariadb: MariaDb
) -> None:  # S0-20 S0-72
    before = position(mariadb)
    for content, kind, text in (
        (b"\xff", "WireError", "is not a binlog"),
        (pb.PrewriteValue(schema_version=1, mutations=[pb.TableMutation(table_id=4711, inserted_rows=[b"\x08\x02"],
                                                                        sequence=[0])]).SerializeToString(),
         "SchemaError", "4711"),
        (pb.PrewriteValue(schema_version=1, mutations=[
            pb.TableMutation(table_id=source.workload.table("d", "t").id, deleted_ids=[5], sequence=[2])])
         .SerializeToString(), "WireError", "deleted_ids"),
    ):  # fmt: skip
        prewrite = build.build_prewrite(source.pd.fetch_ts(), b"k", content)
        source.workload.log(prewrite)
        commit_ts = source.pd.fetch_ts()
        source.workload.log(build.build_commit(prewrite, commit_ts))
        source.settle()
        found = outcome(tmp_path, good)
        assert found["class"] == kind, found
        assert text in found["message"]
        assert str(commit_ts) in found["message"]
        good["filter"]["ignore-txn-commit-ts"] = [*good["filter"]["ignore-txn-commit-ts"], str(commit_ts)]
        config = tmp_path / "good.toml"
        config.write_text(toml(good))
        landed = json.loads(json.dumps(run_job(["plan", "--replication", str(config)])))
        assert landed["ok"]
    assert position(mariadb) == before
    source.settle()
    applied = run_job(["window", "--replication", str(config)])
    assert applied["ok"], applied
    assert position(mariadb) != before


def test_command_line_prints_one_line(tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text('name = "x"\n[lake]\npath = "/tmp/x"\nfoo = 1\n')
    ran = subprocess.run(
        [sys.executable, "-m", "binlake.cli", "window", "run", "--replication", str(config)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    (line,) = ran.stderr.strip().splitlines()
    assert line.startswith("error: unknown key `lake.foo`")
