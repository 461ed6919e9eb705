"""Genuine captures as files of the original drainer: the base is one recorded state, the files lead to later ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.drainerfiles import payloads_of, write_files
from support.dumps import write_dump
from support.mariadb import MariaDb, rows
from support.reparation import compare_with_state, load_base, run
from support.replication_files import write_replication
from support.sinkfiles import write_by_sink

from binlake import cli
from binlake.errors import ConfigError
from binlake.testkit.captures import read_expected_states
from binlake.testkit.captures.capture import Capture
from deploy.local.commitlog import find_tables_in_doubt, plan_ddl, read_log
from deploy.local.handwork import plan_handwork

pytestmark = pytest.mark.mariadb

CAPTURES = Path(__file__).parents[2] / "captures"

# name: the steps of the base and of three later states
CASES = {
    "keys": ("base", "random_0", "random_2", "end"),
    "partition_gen": ("round_0", "round_1", "round_3", "end"),
    "types_all": ("min_max", "random_rows", "deleted", "end"),
}
# "ddl_late" covers some 190 DDL.
LONGER = {
    "ddl": ("database", "renamed", "like", "addc_end"),
    "anomaly": ("before", "before2", "stmt_fail", "ignore_replace"),
    "bank": ("initial", "during_0", "during_2", "end"),
    "ddl_late": ("database", "renamed", "like", "trunc1"),
    "keys_oldcoll": ("base", "random_0", "random_2", "end"),
    "shard": ("same_schema", "half_altered_2", "truncated_one", "end"),
    "shard_mixed": ("same_schema", "half_altered_0", "altered_3", "end"),
    "txn": ("base", "burst", "large_txn", "end"),
}


# Rows that ran ahead of their DDL: the sink writes the DDL before them, a drainer after them.
AHEAD = {
    # In one state a keyless table is copied anew by hand (pingcap/tidb#57510). After the last of these states, a
    # partition is dropped whose bound TiDB interpreted in the session's zone, which the statement's text does not name.
    "zones_rearranged": tuple(f"busy_{number}" for number in range(451, 458)),
    "zones_unique": ("busy_1", "busy_12", "busy_30", "end"),
}


@pytest.mark.servers("mariadb")
@pytest.mark.parametrize(
    "name", ["partition_gen", *(pytest.param(name, marks=pytest.mark.soak) for name in ("keys", "types_all", *LONGER))]
)
def test_base_and_files_give_the_state_of_any_commit(name: str, empty_server: MariaDb, tmp_path: Path) -> None:
    # S0-01: neither source nor lake is used: keyless tables are exact
    replay(name, empty_server, tmp_path)


@pytest.mark.servers("mysql")
@pytest.mark.parametrize("name", ["keys", pytest.param("shard_mixed", marks=pytest.mark.soak)])
def test_mysql_target_accepts_the_same_files(name: str, empty_server: MariaDb, tmp_path: Path) -> None:  # S0-08
    replay(name, empty_server, tmp_path)


@pytest.mark.servers("mariadb")
@pytest.mark.parametrize(
    "name",
    ["types_all", *(pytest.param(name, marks=pytest.mark.soak) for name in ("ddl", "keys", "shard_mixed", *AHEAD))],
)
def test_files_of_binlakes_sink_are_restored_too(
    name: str, empty_server: MariaDb, tmp_path: Path
) -> None:  # S0-01, S0-08
    capture = Capture(CAPTURES / name)
    states = {state.step: state for state in read_expected_states(capture)}
    base, *wanted = (states[step] for step in {**CASES, **LONGER, **AHEAD}[name])
    load_base(capture, empty_server, base.commit_ts)
    write_by_sink(tmp_path, capture)
    log = read_log(capture)
    hands = plan_handwork(plan_ddl(log), capture.read_states(), find_tables_in_doubt(log))
    for state in wanted:
        run(empty_server, tmp_path, start_tso=base.commit_ts + 1, stop_tso=state.commit_ts)
        with empty_server.connect() as link, link.cursor() as cursor:
            hands.run_due(cursor.execute, state.commit_ts)
        assert compare_with_state(capture, state, empty_server).differences == [], state.step


def replay(name: str, server: MariaDb, folder: Path) -> None:
    capture = Capture(CAPTURES / name)
    states = {state.step: state for state in read_expected_states(capture)}
    base, *wanted = (states[step] for step in {**CASES, **LONGER}[name])
    load_base(capture, server, base.commit_ts)
    payloads = payloads_of(capture)
    most = min(1 << 15, sum(len(one.payload) for one in payloads) // 3)
    assert len(write_files(folder, payloads, most)) > 1
    for state in wanted:
        restored = run(server, folder, start_tso=base.commit_ts + 1, stop_tso=state.commit_ts)
        assert restored.rows > 0
        assert compare_with_state(capture, state, server).differences == []
    # A complete run does nothing more.
    assert run(server, folder, start_tso=base.commit_ts + 1, stop_tso=wanted[-1].commit_ts).state == "already"


@pytest.mark.servers("mariadb")
@pytest.mark.parametrize("name", ["keys", pytest.param("partition_gen", marks=pytest.mark.soak)])
def test_dump_and_files_alone_give_the_state_of_any_commit(
    name: str, empty_server: MariaDb, tmp_path: Path
) -> None:  # S0-01: source and lake are gone
    capture = Capture(CAPTURES / name)
    states = {state.step: state for state in read_expected_states(capture)}
    base, first, _, last = (states[step] for step in CASES[name])
    load_base(capture, empty_server, base.commit_ts)
    own = ("information_schema", "mysql", "performance_schema", "sys", "tidb_binlog", "binlake_reparo")
    databases = [db for (db,) in rows(empty_server, "SHOW DATABASES") if db not in own]
    dump = write_dump(empty_server, databases, tmp_path / "dump", base.commit_ts)
    files = tmp_path / "files"
    files.mkdir()
    write_files(files, payloads_of(capture), 1 << 15)
    empty_server.wipe()
    for state in (first, last):
        run(empty_server, files, base=str(dump), stop_tso=state.commit_ts)
        assert compare_with_state(capture, state, empty_server).differences == []
    assert run(empty_server, files, base=str(dump), stop_tso=last.commit_ts).state == "already"
    with pytest.raises(ConfigError, match="newer than the end"):
        run(empty_server, files, base=str(dump), stop_tso=base.commit_ts - 1)


@pytest.mark.soak
@pytest.mark.servers("mariadb")
def test_files_from_the_sources_start_need_no_base(empty_server: MariaDb, tmp_path: Path) -> None:
    capture = Capture(CAPTURES / "sysbench_like")
    (state,) = read_expected_states(capture)
    write_files(tmp_path, payloads_of(capture), 1 << 20)
    run(empty_server, tmp_path)
    assert compare_with_state(capture, state, empty_server).differences == []


@pytest.mark.servers("mariadb")
def test_restore_uses_files_instead_of_the_lake(empty_server: MariaDb, tmp_path: Path) -> None:
    # S0-01: with the options of a described replication
    capture = Capture(CAPTURES / "keys")
    state = list(read_expected_states(capture))[-1]
    write_files(tmp_path, payloads_of(capture), 1 << 15)
    target = f'db-type = "mariadb"\nport = {empty_server.port}\nuser = "{empty_server.user}"'
    file = write_replication(tmp_path, "orders", target=target)
    words = ["--replication", str(file), "--files", str(tmp_path), "--to", str(state.commit_ts), "--output", "json"]
    assert cli.run(["restore", *words]) == 0
    assert compare_with_state(capture, state, empty_server).differences == []
    # another tool loaded a base, so its commit_ts is given
    empty_server.wipe()
    base = list(read_expected_states(capture))[1]
    load_base(capture, empty_server, base.commit_ts)
    assert cli.run(["restore", *words, "--base", str(base.commit_ts)]) == 0
    assert compare_with_state(capture, state, empty_server).differences == []
    write_replication(tmp_path, "orders", target=target, filter='ignore-txn-commit-ts = ["5"]')
    assert cli.run(["restore", *words]) == 1
