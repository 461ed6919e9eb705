"""`binlake feeder check`: any problem of a source is reported before anything is read (R-11)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.mariadb import MariaDb, MySql, execute
from support.sourcelog import source_of

from binlake import cli
from binlake.common.sql import Dialect
from binlake.mysqlbinlog.definitions.descriptions import ColumnRow, IndexRow, TableDescription
from binlake.mysqlbinlog.model import Flavor
from binlake.pump_service.feeder.checks.report import run_checks
from binlake.pump_service.feeder.checks.servers import CheckFinding, ServerFacts, check_server
from binlake.pump_service.feeder.checks.tables import TableFacts, check_tables, check_together
from binlake.pump_service.feeder.settings import FeederFile, SourceFile

_MYSQL = ServerFacts(
    Flavor.MYSQL, "8.4.3",
    {
        "log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL",
        "gtid_mode": "ON", "server_id": "1", "binlog_expire_logs_seconds": "2592000", "log_replica_updates": "ON",
    },
    ("GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `f`@`%`",), frozenset(),
)  # fmt: skip
_MARIADB = ServerFacts(
    Flavor.MARIADB, "10.11.6-MariaDB",
    {
        "log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL",
        "gtid_strict_mode": "ON", "server_id": "1", "expire_logs_days": "0.000000", "log_slave_updates": "ON",
    },
    ("GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `f`@`%`", "GRANT USAGE ON *.* TO `f`@`%`"), frozenset(),
)  # fmt: skip
_OWN_ID = 77


def _server(facts: ServerFacts) -> dict[str, tuple[str, str]]:
    """Verdict and remedy of each check that is not ok."""
    findings = check_server(facts, _OWN_ID, with_snapshot=True)
    return {finding.check: (finding.verdict, finding.remedy) for finding in findings if finding.verdict != "ok"}


@pytest.mark.parametrize("facts", [_MYSQL, _MARIADB])
def test_a_correctly_configured_server_passes_all_checks(facts: ServerFacts) -> None:
    assert _server(facts) == {}
    assert _server(replace(facts, is_first=False)) == {}


@pytest.mark.parametrize("facts", [_MYSQL, _MARIADB])
@pytest.mark.parametrize(
    ("setting", "value", "check", "verdict"),
    [
        ("log_bin", "OFF", "log_bin", "fail"),
        ("binlog_format", "MIXED", "binlog_format", "fail"),
        ("binlog_format", "STATEMENT", "binlog_format", "fail"),
        ("binlog_row_image", "MINIMAL", "binlog_row_image", "fail"),
        ("binlog_row_image", "NOBLOB", "binlog_row_image", "fail"),
        ("binlog_row_metadata", "MINIMAL", "binlog_row_metadata", "warn"),
        ("server_id", "0", "server_id", "fail"),
        ("server_id", str(_OWN_ID), "server_id", "fail"),
        ("binlog_expire_logs_seconds", "3600", "retention", "warn"),
    ],
)
def test_each_setting_has_its_verdict_and_remedy(
    facts: ServerFacts, setting: str, value: str, check: str, verdict: str
) -> None:
    findings = _server(replace(facts, settings={**facts.settings, setting: value}))
    assert list(findings) == [check]
    assert findings[check][0] == verdict
    assert findings[check][1]


def test_checks_depend_on_the_family_and_on_a_second_server() -> None:
    off = {**_MYSQL.settings, "gtid_mode": "OFF"}
    assert _server(replace(_MYSQL, settings=off))["GTID"][0] == "warn"
    assert _server(replace(_MYSQL, settings=off, is_first=False))["GTID"][0] == "fail"
    quiet = {**_MARIADB.settings, "log_slave_updates": "OFF"}
    assert _server(replace(_MARIADB, settings=quiet)) == {}
    assert _server(replace(_MARIADB, settings=quiet, is_first=False))["log_slave_updates"][0] == "fail"
    assert _server(replace(_MARIADB, settings={**_MARIADB.settings, "gtid_strict_mode": "OFF"})) == {
        "gtid_strict_mode": ("warn", "SET GLOBAL gtid_strict_mode = ON: then the numbers of a domain always increase")
    }
    assert _server(replace(_MYSQL, version="5.6.51"))["version"][0] == "warn"
    assert _server(replace(_MYSQL, replicas=frozenset({_OWN_ID})))["server_id"][0] == "warn"


@pytest.mark.parametrize(
    ("grants", "missing"),
    [
        (("GRANT SELECT, RELOAD ON *.* TO x",), {"privileges": "REPLICATION SLAVE, REPLICATION CLIENT"}),
        (("GRANT REPLICATION SLAVE, REPLICATION CLIENT, RELOAD ON *.* TO x",), {"privileges": "SELECT"}),
        (
            ("GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT (a, b) ON d.t TO x",),
            {"privileges of the snapshot": "RELOAD"},
        ),
        (("GRANT ALL PRIVILEGES ON *.* TO x",), {}),
    ],
)
def test_missing_privileges_are_reported(grants: tuple[str, ...], missing: dict[str, str]) -> None:
    findings = _server(replace(_MYSQL, grants=grants))
    assert list(findings) == list(missing)
    for check, words in missing.items():
        assert words in findings[check][1]


def _table(name: str, *columns: tuple[str, str, str], key: str | None = "id", db: str = "d") -> TableDescription:
    rows = tuple(ColumnRow(column, kind, False, None, "", "", extra, "") for column, kind, extra in columns)
    indexes = (IndexRow("PRIMARY", True, key, None, "BTREE", True),) if key else ()
    return TableDescription(
        Flavor.MYSQL, db, name, "utf8mb4_bin", "", rows, indexes, f"CREATE TABLE `{name}` (`id` int)"
    )


def _child(name: str, rule: str) -> TableDescription:
    key = f"  CONSTRAINT `x` FOREIGN KEY (`id`) REFERENCES `t` (`id`) ON DELETE {rule}"
    return replace(_table(name, _ID), create=f"CREATE TABLE `{name}` (\n  `id` int,\n{key}\n)")


_ID, _NUMBERED = ("id", "int", ""), ("id", "int", "auto_increment")
_TABLES = TableFacts((_table("t", _ID),), {"d.t": "InnoDB"}, (1, 1), 0)


def _bad(findings: list[CheckFinding]) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.verdict, finding.found) for finding in findings if finding.verdict != "ok"}


def test_problematic_tables_get_a_warning() -> None:
    assert _bad(check_tables(_TABLES, with_snapshot=True)) == {}
    several = replace(
        _TABLES,
        tables=(
            _table("t", _ID),
            _table("g", _ID, ("p", "geometry", "")),
            _table("k", _ID, key=None),
            _child("c", "CASCADE"),
            _child("r", "RESTRICT"),
        ),
        engines={"d.t": "InnoDB", "d.m": "MyISAM"},
    )
    findings = _bad(check_tables(several, with_snapshot=True))
    assert findings["definitions"][0] == "fail"
    assert findings["definitions"][1].startswith("d.g: ")
    assert findings["foreign keys"] == ("warn", "d.c")
    assert findings["keys"] == ("warn", "d.k")
    assert findings["engines"] == ("fail", "d.m (MyISAM)")
    assert _bad(check_tables(several, with_snapshot=False))["engines"][0] == "warn"


@pytest.mark.parametrize(
    ("families", "verdict", "found"),
    [
        (("tidb", "mysql"), "ok", "known to tidb, mysql"),
        (("mariadb",), "fail", "d.t: utf8mb4_hr_0900_ai_ci (mariadb)"),
        ((), "warn", "d.t: utf8mb4_hr_0900_ai_ci (mariadb)"),
    ],
)
def test_collations_that_a_target_lacks_are_found_before_the_load(
    families: tuple[Dialect, ...], verdict: str, found: str
) -> None:
    table = _table("t", _ID)
    # TiDB and MySQL have the first; MariaDB has neither of this name, and none like the second.
    name = "utf8mb4_0900_ai_ci" if verdict == "ok" else "utf8mb4_hr_0900_ai_ci"
    text = replace(table.columns[0], name="c", collate=name)
    facts = replace(_TABLES, tables=(replace(table, columns=(*table.columns, text)),))
    (finding,) = [
        one for one in check_tables(facts, with_snapshot=True, families=families) if one.check == "collations"
    ]
    assert finding.verdict == verdict
    assert finding.found.startswith(found[:-1])
    assert ("target-families" in finding.remedy) == (verdict != "ok")


def _together(first: TableFacts, second: TableFacts, rename: str = "") -> dict[str, tuple[str, str]]:
    files = [_file(name, rename) for name in ("s1", "s2")]
    return _bad(check_together({"s1": first, "s2": second}, files))


def _file(name: str, rename: str) -> SourceFile:
    return SourceFile.model_validate({"name": name, "rename-schema": rename})


def test_incompatible_shards_are_reported() -> None:
    rename = "{source}_{schema}"
    assert _together(_TABLES, _TABLES)["databases of several sources"][0] == "fail"
    assert _together(_TABLES, _TABLES, rename) == {}
    keyless = replace(_TABLES, tables=(_table("t", _ID, key=None),))
    assert _together(_TABLES, keyless, rename) == {"keys of shards": ("fail", "d.t")}
    numbered = replace(_TABLES, tables=(_table("t", _NUMBERED),))
    assert _together(numbered, numbered, rename) == {"AUTO_INCREMENT of shards": ("warn", "d.t")}
    apart = replace(numbered, increment=(2, 1)), replace(numbered, increment=(2, 2))
    assert _together(*apart, rename) == {}
    wider = replace(_TABLES, tables=(_table("t", _ID, ("v", "int", "")),))
    assert _together(_TABLES, wider, rename) == {"definitions of shards": ("warn", "d.t")}
    assert check_together({"s1": _TABLES}, []) == []


@pytest.fixture(params=["mariadb_source", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    source_server: MariaDb = request.getfixturevalue(request.param)
    execute(source_server, "CREATE DATABASE checked", "CREATE TABLE checked.t (id INT PRIMARY KEY)")
    yield source_server
    execute(source_server, "DROP DATABASE checked")


def _feeder(server: MariaDb, **source: object) -> FeederFile:
    at = {"host": server.host, "port": server.port, "user": server.user}
    file = source_of(server, **source)
    return FeederFile.model_validate({"tracker": at, "source": [file.model_dump(by_alias=True)]})


def test_each_wrong_setting_of_a_real_server_is_reported(server: MariaDb) -> None:
    report = run_checks(_feeder(server))
    assert [(finding.check, finding.found) for _, finding in report if finding.verdict == "fail"] == []
    assert {source for (source, _), _ in report} == {"s1", "tracker"}
    bad = {"binlog_format": "STATEMENT", "binlog_row_image": "MINIMAL"}
    for name, value in bad.items():
        try:
            execute(server, f"SET GLOBAL {name} = {value}")
            failed = [finding for _, finding in run_checks(_feeder(server)) if finding.verdict == "fail"]
        finally:
            execute(server, f"SET GLOBAL {name} = DEFAULT")
            execute(server, f"SET GLOBAL {name} = {'ROW' if name == 'binlog_format' else 'FULL'}")
        assert [(finding.check, finding.found) for finding in failed] == [(name, value)]


def test_missing_privileges_and_bad_tables_of_a_real_server_are_reported(server: MariaDb) -> None:
    execute(
        server, "CREATE TABLE checked.g (id INT PRIMARY KEY, p POINT)", "CREATE TABLE checked.k (id INT)",
        "CREATE TABLE checked.c (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES checked.t (id) ON DELETE CASCADE)",
        "CREATE USER weak IDENTIFIED BY ''", "GRANT SELECT ON *.* TO weak",
    )  # fmt: skip
    try:
        findings = {
            finding.check: finding
            for (source, _), finding in run_checks(_feeder(server, user="weak"))
            if source == "s1"
        }
    finally:
        execute(server, "DROP USER weak")
    without = run_checks(_feeder(server, **{"ignore-tables": ["*.g", "*.k", "*.c"]}))
    assert [finding.check for (source, _), finding in without if source == "s1" and "checked." in finding.found] == []
    assert (findings["privileges"].verdict, "REPLICATION SLAVE" in findings["privileges"].remedy) == ("fail", True)
    assert "checked.g" in findings["definitions"].found
    assert "checked.c" in findings["foreign keys"].found
    assert "checked.k" in findings["keys"].found


def test_a_start_position_that_is_purged_or_of_another_log_fails(server: MariaDb) -> None:
    for file in ("binlog.000099", "binlog.000000"):
        report = run_checks(_feeder(server, start={"mode": "position", "file": file}))
        (finding,) = [finding for _, finding in report if finding.check == "start"]
        assert finding.verdict == "fail"
        assert "bootstrap" in finding.remedy


@pytest.mark.parametrize(
    ("grants", "message"),
    [
        (("GRANT ALL PRIVILEGES ON *.* TO `u`@`%` WITH GRANT OPTION",), ""),
        (
            ("GRANT SELECT (a), INSERT ON *.* TO `u`@`%`", "GRANT SELECT ON `my db`.* TO `u`@`%`"),
            "only my db.* can be seen",
        ),
        (
            ("GRANT SELECT, RELOAD ON *.* TO u", "REVOKE SELECT, INSERT ON `pay`.* FROM `u`@`%`"),
            "cannot be seen: pay.*",
        ),
    ],
)
def test_databases_that_the_user_cannot_see_are_reported(grants: tuple[str, ...], message: str) -> None:
    texts = [finding.found for finding in check_server(replace(_MYSQL, grants=grants), _OWN_ID, with_snapshot=True)
             if finding.check == "databases"]  # fmt: skip
    assert bool(texts) == bool(message)
    assert message in "".join(texts)


def test_a_user_of_one_database_is_warned_that_there_may_be_others(server: MariaDb) -> None:
    execute(server, "CREATE USER narrow IDENTIFIED BY ''", "GRANT SELECT ON checked.* TO narrow")
    try:
        (finding,) = [
            finding for _, finding in run_checks(_feeder(server, user="narrow")) if finding.check == "databases"
        ]
    finally:
        execute(server, "DROP USER narrow")
    assert (finding.verdict, finding.found) == ("warn", "only checked.* can be seen")


def test_a_tracker_of_another_family_is_refused_and_one_per_source_is_suggested(
    mariadb_source: MariaDb, mysql: MySql
) -> None:
    for server in (mariadb_source, mysql):
        server.wipe()  # both may have a database of the same name, left by other tests
    maria, my = ({"host": server.host, "port": server.port} for server in (mariadb_source, mysql))
    for own, failed in (None, ["family"]), (my, []):
        sources = [{"name": "ma", **maria}, {"name": "my", **my, "tracker": own}]
        report = run_checks(FeederFile.model_validate({"tracker": maria, "source": sources}))
        assert [finding.check for _, finding in report if finding.verdict == "fail"] == failed
    assert len({subject for subject, _ in report if subject[0] == "tracker"}) == 2


def test_the_command_prints_a_table_and_exits_with_1_on_failures(
    mysql: MySql, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "feeder.toml"
    at = f'host = "{mysql.host}"\nport = {mysql.port}\nuser = "root"\n'
    file.write_text(f'[tracker]\n{at}[[source]]\nname = "s1"\n{at}')
    assert cli.run(["feeder", "check", "--config", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "binlog_row_image" in shown
    assert "REMEDY" in shown
    file.write_text(f'[tracker]\n{at}[[source]]\nname = "s1"\n{at.replace(str(mysql.port), "1")}')
    assert cli.run(["feeder", "check", "--output", "json", "--config", str(file)]) == 1
    values = json.loads(capsys.readouterr().out)
    assert [(value["source"], value["check"], value["verdict"]) for value in values if value["verdict"] == "fail"] == [
        ("s1", "connection", "fail")
    ]
