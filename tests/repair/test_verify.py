"""Verify reports every planted difference and nothing else, with any names and values; after the fix all is equal."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pymysql.constants import CLIENT
from support.mariadb import MariaDb, execute, rows
from support.shop import Shop
from support.tinylake import replication_toml, set_checkpoint
from support.windows import wait_until

from binlake.changes.net import encode_row_key
from binlake.cli import run as main
from binlake.errors import CheckpointConflict, ConfigError, Drift, LeaseHeld, Transient
from binlake.lake.control import ControlTable
from binlake.lake.windowlog import WindowLog
from binlake.repair import comparing
from binlake.repair.differences import FixFile
from binlake.repair.lakeside import list_tables_at
from binlake.repair.repairing import apply_file, build_settled_target, group_keys_by_table, repair_keys
from binlake.repair.serverside import SqlTable
from binlake.repair.verify import VerifyOptions, verify
from binlake.rows.codec.datum import format_double
from binlake.spark_jobs.commands.verify import run_verify, write_fixes
from binlake.spark_jobs.job.results import DIFFERENT

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]
SMALL = VerifyOptions(chunk_rows=7)


@pytest.mark.soak_on
def test_equal_rows_are_equal_by_checksum_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # S3-04: every type, unusual names and values, keys by number, text and bytes, unordered, and no key
    monkeypatch.setattr(SqlTable, "read_rows", None)
    told: list[str] = []
    verified = verify(shop.lake.replication, SMALL, tell=told.append)
    tables = len(verified.tables)
    assert told[0] == f"table 1 of {tables}, {verified.tables[0].db}.{verified.tables[0].table}"
    assert re.fullmatch(rf"table {tables} of {tables}, \S+, chunk (\d+) of \1", told[-1])
    assert [text for table in verified.tables for text in table.structure] == []
    assert verified.equal
    assert verified.commit_ts == shop.ts
    assert {table.table: table.rows for table in verified.tables} == {
        name: len(shop.rows(name)) for _, name in shop.workload.rows
    }


@pytest.mark.soak_on
@pytest.mark.parametrize("seed", [1, 2])
def test_all_planted_differences_are_found_and_nothing_else(first_shop: Shop, tmp_path: Path, seed: int) -> None:
    # S3-04, U-18
    shop = first_shop.copy(tmp_path, seed)
    right = shop.read_rows()
    planted = shop.spoil(30)
    verified = verify(shop.lake.replication, SMALL)
    assert shop.count_differences(verified) == planted
    assert verified.listed_all

    tables = list_tables_at(shop.lake.replication, shop.lake.paths, verified.commit_ts)
    with build_settled_target(shop.lake.replication) as target:
        done = repair_keys(shop.lake.replication, group_keys_by_table(verified.differences, tables), target)
    assert done.different == len(verified.differences)
    assert shop.read_rows() == right
    assert verify(shop.lake.replication, SMALL).equal


@pytest.mark.soak_on
def test_values_in_another_form_are_equal_by_value(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/understand/equality.md decides, not the checksum: MariaDB writes such doubles and such JSON differently
    big = ["3801906481570168.5", "-2102039802834008.2"]
    txn = shop.workload.begin()
    for number, value in enumerate(big):
        row = dict(shop.rows("types")[0]) | {
            "id": str(900 + number),
            "d": format_double(float(value)),
            "doc": '{"a": 1}',
        }
        txn.insert("shop", "types", **row).insert("shop", "real", d=row["d"], n=1)
    txn.commit()
    set_checkpoint(shop.server, shop.lake.land())
    shop.refill()
    execute(shop.server, """UPDATE shop.types SET doc = '{ "a" : 1 }' WHERE id >= 900""")
    # So that the two forms of a row fall into different chunks.
    monkeypatch.setattr(comparing, "READ_ROWS", 3)
    monkeypatch.setattr(comparing, "_PART_ROWS", 1)
    verified = verify(shop.lake.replication, SMALL)
    assert [str(difference) for difference in verified.differences] == []
    assert verified.equal
    execute(shop.server, "UPDATE shop.real SET d = 1 WHERE d > 0")
    verified = verify(shop.lake.replication, SMALL)
    assert sorted(difference.kind for difference in verified.differences) == ["extra", "missing"]


def test_killed_verify_resumes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # U-23
    class Killed(BaseException):
        pass

    read: list[tuple[str, int]] = []
    digest = SqlTable.compute_digest

    def counting(table: SqlTable, number: int) -> object:
        read.append((table.plan.table.name, number))
        return digest(table, number)

    def power_cut(_: str) -> None:
        if len(read) == 20:
            raise Killed

    monkeypatch.setattr(SqlTable, "compute_digest", counting)
    monkeypatch.setattr(comparing, "FLUSH_CHUNKS", 1)
    with pytest.raises(Killed):
        verify(shop.lake.replication, SMALL, hook=power_cut)
    behind = list(read)
    read.clear()
    verified = verify(shop.lake.replication, SMALL)
    assert verified.equal
    # The last chunk was not yet recorded when the run died.
    assert len(set(behind) & set(read)) <= 1
    whole = [(table.table, number) for table in verified.tables for number in range(table.chunks)]
    assert sorted({*behind, *read}) == sorted(whole)
    assert verified.rows == sum(map(len, shop.workload.rows.values()))

    # After a complete run, the next one reads everything, and so does a run at another checkpoint.
    read.clear()
    verify(shop.lake.replication, SMALL)
    assert sorted(read) == sorted(whole)


def test_sampled_runs_read_every_chunk_in_turn(shop: Shop) -> None:
    planted = shop.spoil(30)
    reported: dict[str, object] = {}
    sizes = []
    for _ in range(3):
        results = run_verify(shop.lake.replication, VerifyOptions(chunk_rows=7, sample=0.34), "", None, False, [])
        detail = results[0].to_dict()["detail"]
        assert detail["every"] == 3
        sizes.append(results[0].rows)
        reported[detail["turn"]] = {(t["table"], t["missing"], t["extra"], t["different"]) for t in detail["unequal"]}
    assert sorted(reported) == [0, 1, 2]
    assert all(size < sum(sizes) * 0.7 for size in sizes)
    counts = {
        name: sum(sum(one[1:]) for part in reported.values() for one in part if one[0] == name) for name in planted
    }
    assert counts == {name: sum(kinds.values()) for name, kinds in planted.items()}


def test_result_outlives_a_lake_that_cannot_be_written(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = shop.spoil(30)
    right = shop.read_rows()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ControlTable, "append", refuse)
    monkeypatch.setattr(ControlTable, "clear", refuse)
    monkeypatch.setattr(comparing, "FLUSH_CHUNKS", 1)
    lines: list[str] = []
    [result] = run_verify(shop.lake.replication, SMALL, "", None, True, lines)
    assert result.state == "different"
    assert {table["table"] for table in result.detail["unequal"]} == set(planted)
    assert "could not be recorded in the lake" in str(result.detail["reason"])
    # Nor is the target changed without a record of it.
    assert lines[-1] == "nothing is repaired: the lake could not record it"
    assert shop.read_rows() == right
    assert "--fresh" in capsys.readouterr().out
    monkeypatch.undo()
    assert [one.stage for one in run_verify(shop.lake.replication, SMALL, "", None, True, [])] == ["verify", "repair"]


def test_fix_file_states_its_purpose_and_runs_once(shop: Shop, tmp_path: Path) -> None:
    # DESIGN 3.9: keyless rows too, however often it is run; a plain client can run the file as well
    right = shop.read_rows()
    shop.spoil(30)
    verified = verify(shop.lake.replication, SMALL)
    path = tmp_path / "fixes.sql"
    written = write_fixes(shop.lake.replication, verified, path)
    assert FixFile.read(path) == written
    with shop.server.connect(client_flag=CLIENT.MULTI_STATEMENTS) as connection, connection.cursor() as cursor:
        cursor.execute(path.read_text(encoding="utf-8"))
        while cursor.nextset():
            pass
    assert shop.read_rows() == right
    shop.refill(shop.spoilt)
    tables = [name for (name,) in rows(shop.server, "SELECT DISTINCT table_name FROM information_schema.columns "
                                       "WHERE table_schema = 'shop'")]  # fmt: skip
    execute(shop.server, *(f"ALTER TABLE shop.`{name}` ADD COLUMN own INT DEFAULT 1" for name in tables))
    with build_settled_target(shop.lake.replication) as target, pytest.raises(Drift, match="columns of its own"):
        apply_file(shop.lake.replication, path, target)
    execute(shop.server, *(f"ALTER TABLE shop.`{name}` DROP COLUMN own" for name in tables))
    for _ in range(2):
        with build_settled_target(shop.lake.replication) as target:
            apply_file(shop.lake.replication, path, target)
        assert shop.read_rows() == right
    ledger = rows(shop.server, "SELECT SUM(row_count), MIN(lo), MAX(hi) FROM tidb_binlog.binlake_ledger")
    assert ledger == [(sum(batch.rows for batch in written.batches), shop.ts, shop.ts)]

    path.write_bytes(path.read_bytes().replace(b"INSERT", b"INSErt", 1))
    with pytest.raises(ConfigError, match="its statements were changed"):
        FixFile.read(path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ConfigError, match="cannot be used"):
        FixFile.read(path)


def test_fix_is_never_applied_at_another_checkpoint(shop: Shop, tmp_path: Path) -> None:
    #
    shop.spoil(10)
    spoilt = shop.read_rows()
    path = tmp_path / "fixes.sql"
    write_fixes(shop.lake.replication, verify(shop.lake.replication, SMALL), path)
    set_checkpoint(shop.server, shop.lake.land())
    with (
        pytest.raises(CheckpointConflict, match="older rows must never overwrite newer ones"),
        build_settled_target(shop.lake.replication) as target,
    ):
        apply_file(shop.lake.replication, path, target)
    assert shop.read_rows() == spoilt


def test_target_inside_a_window_is_refused_or_awaited(shop: Shop) -> None:
    # DESIGN 3.8, S3-05
    set_checkpoint(shop.server, shop.ts, consistent=False)
    with pytest.raises(Transient, match="inside a window"):
        verify(shop.lake.replication, SMALL)
    with pytest.raises(Transient, match="inside a window"), build_settled_target(shop.lake.replication):
        pass
    timer = threading.Timer(0.3, set_checkpoint, (shop.server, shop.ts))
    timer.start()
    try:
        assert verify(shop.lake.replication, VerifyOptions(chunk_rows=7, wait_s=120)).equal
    finally:
        timer.join()


def test_settled_target_is_exclusive(shop: Shop) -> None:
    #
    with (
        build_settled_target(shop.lake.replication),
        pytest.raises(LeaseHeld),
        build_settled_target(shop.lake.replication),
    ):
        pass
    with build_settled_target(shop.lake.replication):
        pass
    set_checkpoint(shop.server, shop.ts, task="another")
    with (
        pytest.raises(CheckpointConflict, match="belongs to the replication another"),
        build_settled_target(shop.lake.replication),
    ):
        pass


def test_state_between_two_mirror_versions_is_read_from_the_lake(shop: Shop) -> None:
    # the mirror lags the target, and is later ahead of it
    w = shop.workload
    row = dict(shop.rows("log")[0])
    item = dict(shop.rows("item")[0])
    w.begin().delete("shop", "log", **row).insert("shop", "log", line="new", f="9.5", n=1).commit()
    w.begin().update("shop", "item", item, id="5555").commit()
    ts = shop.lake.land(mirrored=False)
    shop.spoil(0)
    set_checkpoint(shop.server, ts)
    assert verify(shop.lake.replication, SMALL).equal
    set_checkpoint(shop.server, shop.ts)
    verified = verify(shop.lake.replication, SMALL)
    moved = {('["5555"]', "extra"), (encode_row_key(item, ["id"]), "missing")}
    assert {
        (difference.key, difference.kind) for difference in verified.differences if difference.table == "item"
    } == moved
    assert {
        (difference.kind, difference.copies) for difference in verified.differences if difference.table == "log"
    } == {("extra", 1), ("missing", 1)}


def test_table_with_another_definition_is_named(shop: Shop) -> None:
    execute(shop.server, "ALTER TABLE shop.item DROP COLUMN n", "DROP TABLE shop.pair")
    execute(shop.server, "ALTER TABLE shop.log MODIFY line VARCHAR(60)")
    verified = verify(shop.lake.replication, SMALL)
    assert {table.table: table.structure for table in verified.tables if table.structure} == {
        "item": ["shop.item: column n is missing: its values would be lost"],
        "pair": ["shop.pair: the table is missing"],
        "log": ["shop.log: column line is varchar(60), not varchar(64)"],
    }
    assert not verified.equal


def test_reader_gives_way_to_a_ddl(shop: Shop) -> None:
    started = threading.Event()

    def alter() -> None:
        started.set()
        execute(shop.server, "ALTER TABLE shop.ci ADD COLUMN more INT")

    thread = threading.Thread(target=alter)

    def first_chunk(_: str) -> None:
        if not started.is_set():
            thread.start()
            waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE '%metadata lock%'"
            wait_until(lambda: rows(shop.server, waiting)[0][0] == 1)

    try:
        with pytest.raises(Transient, match="stops to let it run"):
            verify(shop.lake.replication, SMALL, hook=first_chunk)
    finally:
        thread.join(120)
    assert not thread.is_alive()


def test_target_is_compared_with_a_source_that_answers_sql(
    first_shop: Shop, second_mariadb: MariaDb, tmp_path: Path
) -> None:
    # S3-04
    sql = {"host": second_mariadb.host, "port": second_mariadb.port, "user": second_mariadb.user}
    shop = first_shop.copy(tmp_path, source={"sql": sql})
    second_mariadb.wipe()
    shop.fill(second_mariadb)
    options = replace(SMALL, against="source")
    with pytest.raises(ConfigError, match="cannot be read as of a commit_ts"):
        verify(shop.lake.replication, options)
    options = replace(options, source_stands_still=True)
    assert verify(shop.lake.replication, options).equal
    planted = shop.spoil(30)
    assert shop.count_differences(verify(shop.lake.replication, options)) == planted


def test_commands_report_their_findings_in_json(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    #
    file, result = tmp_path / "demo.toml", tmp_path / "result.json"
    file.write_text(replication_toml(shop.lake.replication))
    command = ["verify", "--replication", str(file), "--chunk-rows", "7", "--result", str(result), "--output", "json"]
    assert main(command) == 0
    assert json.loads(result.read_text())["results"][0]["state"] == "equal"
    shop.spoil(12)
    fixes = tmp_path / "fixes.sql"
    assert main([*command, "--fix-file", str(fixes)]) == DIFFERENT
    reported = json.loads(result.read_text())["results"][0]
    assert (reported["state"], reported["lo"], reported["hi"]) == ("different", str(shop.ts), str(shop.ts))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0] == reported
    assert {entry["table"] for entry in reported["detail"]["lineage"]["read"]} == {
        name for _, name in shop.workload.rows
    }
    assert main(["repair", "--replication", str(file), "--from-file", str(fixes)]) == 0
    assert main(command) == 0
    shop.spoil(12)
    assert main([*command, "--fix"]) == 0
    different, mended = json.loads(result.read_text())["results"]
    wrong = {difference["table"] for difference in different["detail"]["differences"]}
    assert {entry["table"] for entry in mended["detail"]["lineage"]["wrote"]} == wrong
    assert main(command) == 0
    # Lineage is only in the result, not in the history.
    assert not any("lineage" in event["detail"] for event in WindowLog(shop.lake.paths).read_events())
    set_checkpoint(shop.server, shop.ts, consistent=False)
    assert main(command) == 1
    assert json.loads(result.read_text())["error"]["kind"] == "Transient"
    stages = [
        (e["stage"], e["state"]) for e in WindowLog(shop.lake.paths).read_events() if e["stage"] in ("verify", "repair")
    ]
    assert stages == [("verify", "equal"), ("verify", "different"), ("repair", "done"), ("verify", "equal"),
                      ("verify", "different"), ("repair", "done"), ("verify", "equal")]  # fmt: skip
