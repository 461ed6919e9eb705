"""A dump is loaded as a base on a real server: whole or recognizably unfinished, once, and only into empty tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.baseloads import BASE, CLUSTER, load_base, replication
from support.children import end_children
from support.dumps import put, write_dump
from support.mariadb import MariaDb, execute, rows

from binlake.errors import BinlakeError, CheckpointConflict, ConfigError
from binlake.target import read_checkpoint, read_open_window
from binlake.target.base import BaseDump, find_base

pytestmark = [pytest.mark.mariadb, pytest.mark.servers("mariadb")]
DATABASES = ("shop-1", "log")


def fill(server: MariaDb) -> None:
    """Two databases: a keyed table of unusual values, a keyless one with duplicates, an empty one, a view."""
    execute(
        server,
        *(f"DROP DATABASE IF EXISTS `{db}`" for db in ("tidb_binlog", *DATABASES, "other")),
        "CREATE DATABASE `shop-1` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "CREATE DATABASE `log`",
        "CREATE TABLE `shop-1`.`item.s` (id BIGINT PRIMARY KEY, name VARCHAR(40), b VARBINARY(9), at TIMESTAMP(3) NULL,"
        " n DECIMAL(9,2), UNIQUE KEY u (name)) DEFAULT CHARSET utf8mb4 COLLATE utf8mb4_bin",
        "CREATE TABLE `log`.line (what VARCHAR(20), n INT)",
        "CREATE TABLE `log`.empty (id INT PRIMARY KEY)",
        *(
            f"INSERT INTO `shop-1`.`item.s` VALUES ({n}, 'it''s; \\\\({n}\\n🐬', x'00ff{n:02x}',"
            f" '2026-01-02 03:04:05.678', -{n}.25)"
            for n in range(17)
        ),
        *("INSERT INTO `log`.line VALUES ('same', 1), ('same', 1), (NULL, NULL)" for _ in range(4)),
    )


def read_rows(server: MariaDb) -> dict[str, Counter[Any]]:
    """All rows of the dumped databases."""
    names = ("`shop-1`.`item.s`", "`log`.line", "`log`.empty")
    return {name: Counter(rows(server, f"SELECT * FROM {name}")) for name in names}


@pytest.fixture
def dumped(server: MariaDb, tmp_path: Path) -> tuple[Path, dict[str, Counter[Any]]]:
    """The folder of a dump, and the dumped rows; the server is empty again."""
    fill(server)
    folder, there = write_dump(server, DATABASES, tmp_path / "dump", BASE), read_rows(server)
    execute(server, *(f"DROP DATABASE `{db}`" for db in DATABASES))
    return folder, there


Dumped = tuple[Path, dict[str, Counter[Any]]]


@pytest.mark.servers("mariadb", "mysql")
def test_dump_is_loaded_whole_with_the_checkpoint_at_its_commit_ts(server: MariaDb, dumped: Dumped) -> None:  # S0-01
    folder, there = dumped
    done = load_base(replication(server), find_base(folder), CLUSTER)
    assert (done.state, done.rows, done.ddls) == ("applied", 17 + 12, 5)
    assert read_rows(server) == there
    checkpoint = read_checkpoint(replication(server), CLUSTER)
    assert checkpoint is not None
    assert (checkpoint.commit_ts, checkpoint.consistent) == (BASE, True)
    assert load_base(replication(server), find_base(folder), CLUSTER).state == "already"
    assert read_rows(server) == there


@pytest.mark.parametrize(("style", "compression"), [("mydumper", "gz"), ("dumpling", "zst")])
def test_dumps_of_both_tools_and_compressed_files_are_loaded(
    server: MariaDb, tmp_path: Path, style: str, compression: str
) -> None:
    fill(server)
    there = read_rows(server)
    folder = write_dump(server, DATABASES, tmp_path / "dump", BASE, style=style, compression=compression)
    execute(server, *(f"DROP DATABASE `{db}`" for db in DATABASES))
    load_base(replication(server), find_base(folder), CLUSTER)
    assert read_rows(server) == there


class Killed(Exception):
    """Stands for the end of the process."""


def test_load_killed_at_any_step_resumes_and_loads_each_row_once(server: MariaDb, dumped: Dumped) -> None:
    folder, there = dumped
    steps = 0

    def count(_: str) -> None:
        nonlocal steps
        steps += 1

    load_base(replication(server), find_base(folder), CLUSTER, hook=count)
    for kill_at in range(1, steps + 1, max(1, steps // 20)):
        execute(server, *(f"DROP DATABASE IF EXISTS `{db}`" for db in ("tidb_binlog", *DATABASES)))
        left = kill_at

        def kill(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        with pytest.raises(Killed):
            load_base(replication(server), find_base(folder), CLUSTER, hook=kill)
        end_children()
        checkpoint = read_checkpoint(replication(server), CLUSTER)
        if checkpoint is not None and checkpoint.commit_ts < BASE:
            assert not checkpoint.consistent
            opened = read_open_window(replication(server), CLUSTER)
            assert opened is not None
            assert opened.window == (0, BASE)
        load_base(replication(server), find_base(folder), CLUSTER)
        assert read_rows(server) == there, kill_at


@pytest.mark.servers("mariadb", "mysql")
def test_error_value_of_an_enum_is_loaded(server: MariaDb, tmp_path: Path) -> None:
    execute(
        server,
        "DROP DATABASE IF EXISTS `log`",
        "DROP DATABASE IF EXISTS tidb_binlog",
        "CREATE DATABASE `log`",
        "CREATE TABLE `log`.e (id INT PRIMARY KEY, e ENUM('a', 'b'))",
        "SET sql_mode = ''",
        "INSERT INTO `log`.e VALUES (1, 'a'), (2, 'none such'), (3, NULL)",
    )
    folder = write_dump(server, ["log"], tmp_path / "dump", BASE)
    execute(server, "DROP DATABASE `log`")
    load_base(replication(server), find_base(folder), CLUSTER)
    assert rows(server, "SELECT id, e + 0 FROM `log`.e ORDER BY 1") == [(1, 1), (2, 0), (3, None)]


def test_another_dump_cannot_continue_a_started_load(server: MariaDb, dumped: Dumped) -> None:
    folder, _ = dumped

    def kill(step: str) -> None:
        if step == "batch":
            raise Killed

    with pytest.raises(Killed):
        load_base(replication(server), find_base(folder), CLUSTER, hook=kill)
    # with the same length
    file = folder / "log.line.000000000.sql"
    file.write_text(file.read_text().replace("same", "some"))
    with pytest.raises(CheckpointConflict, match="must be finished first"):
        load_base(replication(server), find_base(folder), CLUSTER)


def write_metadata(folder: Path, count: int, gone: str = "") -> None:
    """Append a row count of the keyless table in mydumper's form, and delete the file `gone`."""
    with (folder / "metadata").open("a") as metadata:
        metadata.write(f"[`log`.`line`]\nreal_table_name=line\nrows = {count}\n")
    if gone:
        (folder / gone).unlink()


def test_row_counts_in_the_metadata_must_match(server: MariaDb, dumped: Dumped) -> None:
    folder, there = dumped
    write_metadata(folder, 12)
    load_base(replication(server), find_base(folder), CLUSTER)
    assert read_rows(server) == there


def test_commit_ts_is_taken_from_the_option_only_if_the_metadata_has_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no metadata"):
        find_base(tmp_path, BASE)
    metadata = tmp_path / "metadata"
    metadata.write_text("Started dump at: 2026-01-01 00:00:00\n")
    assert find_base(tmp_path, BASE).commit_ts == BASE
    metadata.write_text("SHOW MASTER STATUS:\n\tLog: bin.000001\n\tPos: 4\n")
    assert find_base(tmp_path, BASE).commit_ts == BASE
    metadata.write_text(f"SHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos: {BASE}\n")
    assert [find_base(tmp_path, given).commit_ts for given in (None, BASE)] == [BASE] * 2
    with pytest.raises(ConfigError, match=f"another commit_ts .*metadata={BASE} base-ts={BASE + 1}"):
        find_base(tmp_path, BASE + 1)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: next(folder.glob("shop-1.item*.000000001.sql")).write_text("INSERT INTO `t` VALUES (1"), "cut"),
        (lambda folder: (folder / "log-schema-create.sql").unlink(), "not a complete dump"),
        (lambda folder: (folder / "log.line-schema.sql").unlink(), "without its definition"),
        (lambda folder: (folder / "log.line.1.csv").write_text("1,2"), "not SQL"),
        (lambda folder: (folder / "metadata").write_text("Log: bin.1\nPos: 4\n"), "not a commit_ts"),
        (lambda folder: (folder / "log.line.000000000.sql").write_text("DROP TABLE x;"), "not an INSERT"),
        (lambda folder: (folder / "log.line.000000000.sql").rename(folder / "log.line.0.sql.snappy"), "not SQL"),
        (lambda folder: (folder / "log.line.2.sql.xz").write_bytes(b""), "not SQL"),
        (lambda folder: (folder / "metadata.partial").write_bytes(b""), "did not finish"),
        (lambda folder: (folder / "log.line-schema.sql").write_bytes(b"CREATE TABLE `\xe4` (a INT);"), "not in UTF-8"),
        (lambda folder: write_metadata(folder, 13), "does not have the number of rows .* metadata=13 files=12"),
        (
            lambda folder: write_metadata(folder, 12, "log.line.000000000.sql"),
            "does not have the number of rows .* files=7",
        ),
    ],
)
def test_incomplete_dump_is_reported_and_nothing_is_written(
    server: MariaDb, dumped: Dumped, spoil: Any, said: str
) -> None:  # S3-13
    folder, _ = dumped
    spoil(folder)
    with pytest.raises(ConfigError, match=said):
        load_base(replication(server), find_base(folder), CLUSTER)
    assert read_checkpoint(replication(server), CLUSTER) is None
    assert rows(server, "SHOW DATABASES LIKE 'shop-1'") == []


def test_statement_longer_than_a_packet_is_reported_before_any_write(server: MariaDb, dumped: Dumped) -> None:
    folder, _ = dumped
    put(folder / "log.line.000000007.sql", f"INSERT INTO `line` VALUES ('{'x' * (1 << 20)}', 1);\n")
    before = rows(server, "SELECT @@GLOBAL.max_allowed_packet")[0][0]
    execute(server, f"SET GLOBAL max_allowed_packet = {1 << 20}")
    try:
        with pytest.raises(ConfigError, match="more than the target accepts") as caught:
            load_base(replication(server), find_base(folder), CLUSTER)
    finally:
        execute(server, f"SET GLOBAL max_allowed_packet = {before}")
    assert caught.value.where["file"].endswith("log.line.000000007.sql")
    assert rows(server, "SHOW DATABASES LIKE 'log'") == []


def test_tables_with_rows_are_not_overwritten(server: MariaDb, dumped: Dumped) -> None:
    folder, _ = dumped
    execute(server, "CREATE DATABASE `log`", "CREATE TABLE `log`.line (what VARCHAR(20), n INT)",
            "INSERT INTO `log`.line VALUES ('mine', 1)")  # fmt: skip
    with pytest.raises(CheckpointConflict, match="already have rows at the target") as caught:
        load_base(replication(server), find_base(folder), CLUSTER)
    assert caught.value.where["tables"] == "log.line"
    assert rows(server, "SELECT * FROM `log`.line") == [("mine", 1)]
    assert rows(server, "SHOW DATABASES LIKE 'shop-1'") == []


def test_filters_and_routes_select_tables_and_row_rules_are_refused(server: MariaDb, dumped: Dumped) -> None:
    folder, there = dumped
    rules = {
        "filter": {"replicate-do-db": ["log"]},
        "routes": [
            {"schema-pattern": "log", "target-schema": "other"},
            {"schema-pattern": "log", "table-pattern": "line", "target-schema": "other", "target-table": "l"},
        ],
    }
    load_base(replication(server, **rules), find_base(folder), CLUSTER)
    assert Counter(rows(server, "SELECT * FROM other.l")) == there["`log`.line"]
    assert rows(server, "SHOW DATABASES LIKE 'shop-1'") == []
    rules = {"filters": [{"schema-pattern": "log", "events": ["insert"], "action": "Ignore"}],
             "filter": {"kept-rows": "replace"}}  # fmt: skip
    with pytest.raises(ConfigError, match="rules change or leave out rows") as caught:
        load_base(replication(server, **rules), BaseDump(folder, BASE + 1), CLUSTER)
    assert caught.value.where["tables"] == "log.empty, log.line"


def test_refused_statement_keeps_earlier_rows_and_names_its_position(server: MariaDb, dumped: Dumped) -> None:
    folder, there = dumped
    file = folder / "log.line.000000001.sql"
    text = file.read_text()
    file.write_text(text.replace("'same'", "'much longer than twenty characters'"))
    with pytest.raises(BinlakeError, match="what") as caught:
        load_base(replication(server), find_base(folder), CLUSTER)
    assert caught.value.tables == (("log", "line"),)
    checkpoint = read_checkpoint(replication(server), CLUSTER)
    assert checkpoint is not None
    assert not checkpoint.consistent
    execute(server, "ALTER TABLE `log`.line MODIFY what VARCHAR(200)")
    load_base(replication(server), find_base(folder), CLUSTER)
    assert sum(read_rows(server)["`log`.line"].values()) == sum(there["`log`.line"].values())
