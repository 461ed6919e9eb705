"""The original's toml and flags, and the windows of a run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from support.drainerfiles import Story, write_files

from binlake import cli, tso
from binlake.binlogfile.folder import BinlogIndex
from binlake.binlogfile.reading import BinlogDdl, FilePosition, read_items
from binlake.common.filestore import LocalStore
from binlake.errors import CheckpointConflict, ConfigError
from binlake.extras.reparo.ddl import FileDdl
from binlake.extras.reparo.settings import ReparoSettings, read_settings
from binlake.extras.reparo.windows import FileWindow, cut_windows

# The original's sample, with all of its keys.
ORIGINAL = """
data-dir = "./data.drainer"
log-level = "info"
log-file = ""
start-datetime = "2026-11-23 15:00:00"
stop-datetime = "2026-11-23 16:00:00"
dest-type = "mysql"
txn-batch = 20
worker-count = 8
safe-mode = true
replicate-do-db = ["~^b.*","s1"]
replicate-ignore-db = ["s2"]
[[replicate-do-table]]
db-name ="test"
tbl-name = "log"
[[replicate-ignore-table]]
db-name ="s1"
tbl-name = "~^a.*"
[dest-db]
host = "10.0.0.1"
port = 3309
name = ""
user = "u"
password = "p"
"""


def test_originals_toml_is_read(tmp_path: Path) -> None:
    file = tmp_path / "reparo.toml"
    file.write_text(ORIGINAL)
    settings = read_settings(str(file), {"worker-count": "4", "stop-tso": None})
    target = settings.build_target()
    assert (target.host, target.port, target.user, target.password) == ("10.0.0.1", 3309, "u", "p")
    assert (target.batch, target.worker_count, target.safe_mode, target.db_type) == (20, 4, "always", "mysql")
    assert tso.to_datetime(settings.start) == datetime(2026, 11, 23, 15).astimezone()
    assert settings.stop - settings.start == tso.compose(3_600_000)
    keeps = settings.build_table_filter().keeps
    kept = [name for name in (("Bank", "t"), ("s1", "x"), ("s1", "A1"), ("s2", "t"), ("test", "log"), ("test", "t"))
            if keeps(*name)]  # fmt: skip
    assert kept == [("Bank", "t"), ("s1", "x"), ("test", "log")]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"data-dir": ""}, "data-dir"),
        ({"unknown": 1}, "unknown"),
        ({"dest-type": "oracle"}, "dest-type"),
        ({"start-tso": "5", "stop-tso": "4"}, "start=5"),
        ({"start-datetime": "yesterday"}, "yesterday"),
    ],
    ids=["empty data-dir", "unknown key", "unknown dest-type", "stop before start", "invalid datetime"],
)
def test_invalid_setting_is_named(values: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_settings("", {"data-dir": "x", **values})


def test_unknown_time_zone_is_named() -> None:
    with pytest.raises(ConfigError, match="Mars"):
        _ = ReparoSettings.model_validate({"data-dir": "x", "time-zone": "Mars"}).zone


def test_time_zone_comes_from_the_index() -> None:
    def zone(asked: str, index: BinlogIndex | None) -> str:
        return ReparoSettings.model_validate({"data-dir": "x", "time-zone": asked}).with_zone_of(index).zone.key

    said, silent = BinlogIndex("r.f", 0, 9, time_zone="Asia/Tokyo"), BinlogIndex("r.f", 0, 9)
    assert [zone("", said), zone("Asia/Tokyo", said)] == ["Asia/Tokyo"] * 2
    assert [zone("", None), zone("", silent)] == ["UTC"] * 2
    assert [zone("Europe/Berlin", None), zone("Europe/Berlin", silent)] == ["Europe/Berlin"] * 2
    with pytest.raises(ConfigError, match=r"another time zone .*time-zone=UTC files=Asia/Tokyo"):
        zone("UTC", said)


def cut(folder: Path, most: int, opened: tuple[int, int] | None = None, stop: int = 0, lo: int = 0) -> list[FileWindow]:
    items = read_items(LocalStore(folder), lo + 1)
    return list(cut_windows(items, lo, stop, most, lambda db, _: db != "other", opened))


def bounds(windows: list[FileWindow]) -> list[tuple[int, int, int]]:
    return [(window.lo, window.hi, len(window.transactions)) for window in windows]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows at 1010, 1020, 1030 and 1050; a DDL at 1040; a DDL of another database at 1060."""
    found = Story().put((1, "", "a")).put((2, "", "b")).put((3, "", "c")).ddl("TRUNCATE TABLE `t`")
    write_files(tmp_path, found.put((4, "", "d")).ddl("DROP TABLE `x`", "other").written)
    return tmp_path


def test_windows_are_runs_of_transactions_or_a_single_ddl(folder: Path) -> None:
    assert bounds(cut(folder, 100)) == [(0, 1030, 3), (1030, 1040, 0), (1040, 1060, 1)]
    assert bounds(cut(folder, 2)) == [(0, 1020, 2), (1020, 1030, 1), (1030, 1040, 0), (1040, 1060, 1)]
    # there is nothing more up to that end
    assert bounds(cut(folder, 100, stop=2000))[-1] == (1040, 2000, 1)


def test_open_window_keeps_its_end(folder: Path) -> None:
    assert bounds(cut(folder, 100, (0, 1010))) == [(0, 1010, 1), (1010, 1030, 2), (1030, 1040, 0), (1040, 1060, 1)]
    assert bounds(cut(folder, 1, (1020, 1030), lo=1020))[0] == (1020, 1030, 1)
    assert bounds(cut(folder, 1, (1030, 1040), lo=1030))[0] == (1030, 1040, 0)
    assert bounds(cut(folder, 100, (1040, 2000), lo=1040)) == [(1040, 2000, 1)]
    with pytest.raises(CheckpointConflict, match="1005-1040"):
        cut(folder, 100, (1005, 1040))


@pytest.mark.parametrize(
    ("sql", "depends"),
    [
        ("ALTER TABLE t ADD COLUMN c TIMESTAMP NULL DEFAULT '2024-03-01 00:00:00'", True),
        ('CREATE TABLE t (c TIMESTAMP(3) NOT NULL DEFAULT "1999-01-01")', True),
        ("ALTER TABLE t ADD PARTITION (PARTITION p VALUES LESS THAN (unix_timestamp('2024-03-11')))", True),
        ("CREATE TABLE t (c TIMESTAMP DEFAULT CURRENT_TIMESTAMP, d INT DEFAULT 20)", False),
        ("CREATE TABLE t (c TIMESTAMP DEFAULT '0000-00-00 00:00:00')", False),
        ("CREATE TABLE t (c DATETIME DEFAULT '2024-03-01' COMMENT 'TIMESTAMP')", False),
    ],
)
def test_ddl_that_depends_on_the_sessions_time_zone_is_recognized(sql: str, depends: bool) -> None:
    assert FileDdl.of(BinlogDdl(1, FilePosition("f", 0), "app", sql)).depends_on_zone == depends


def test_rows_are_shown_with_types_and_both_values(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(
        folder, Story().put((1, "", "a")).put((1, "a", "ä\n")).put((1, "ä\n", None)).ddl("DROP TABLE `t`").written
    )
    assert cli.run(["reparo", "--data-dir", str(folder), "--start-tso", "1020"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if not line.startswith("--")] == [
        "update app.t",
        '  id (bigint): "1" -> "1"',
        '  v (varchar): "a" -> "ä\\n"',
        "delete app.t",
        '  id (bigint): "1"',
        '  v (varchar): "ä\\n"',
        "use app; DROP TABLE `t`;",
    ]
    assert cli.run(["reparo", "-data-dir", str(folder), "-stop-tso", "1010", "--output", "json"]) == 0
    assert capsys.readouterr().out == (
        '{"commit_ts": "1010", "file": "binlog-0000000000000000-20240101000000", "offset": 0, "kind": "insert",'
        ' "db": "app", "table": "t", "after": {"id": "1", "v": "a"}, "types": {"id": "bigint", "v": "varchar"}}\n'
    )
