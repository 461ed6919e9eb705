"""Tables that come later are loaded while the log is read: applied strictly, what is published is what the source has.

(Decision 148.)
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, DyingPumps, committed
from randomload_helpers import TABLES, Replica, Writer, source_rows
from support.mariadb import MariaDb, execute
from support.windows import wait_until
from table_load_helpers import Followed

from binlake.cli import run
from binlake.errors import SchemaError
from binlake.pump_service.feeder.snapshot import tableround
from binlake.pump_service.feeder.snapshot.control import add_request, list_requests, set_paused

LATER = ("number", "word", "moment", "keyless")
"""Tables that are followed later."""
SNAPSHOT = {"chunk-rows": 7, "threads": 2, "form": "rows"}
FIRST: dict[str, Any] = {"ignore-tables": [f"{DB}.{name}" for name in LATER], "snapshot": SNAPSHOT}
NOW: dict[str, Any] = {"snapshot": SNAPSHOT}


@pytest.fixture(params=["mariadb_source", "mysql"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MariaDb]:
    """Rounds are as short as they can be."""
    monkeypatch.setattr(tableround, "ROUND_S", 0.0)
    made: MariaDb = request.getfixturevalue(request.param)
    execute(made, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}")
    yield made
    execute(made, f"DROP DATABASE IF EXISTS {DB}")


def check(server: MariaDb, followed: Followed, pumps: DyingPumps, names: Iterable[str] = TABLES) -> None:
    """What was published, applied strictly, is what `server` has."""
    replica = Replica(followed)  # type: ignore[arg-type]
    for binlog in committed(pumps):
        replica.apply(binlog)
    for name in names:
        assert replica.rows(name) == source_rows(server, followed, name), name  # type: ignore[arg-type]
    keys = Counter(binlog.prewrite_key.split(b"|", 1)[1] for binlog in committed(pumps) if not binlog.ddl_job_id)
    assert max(keys.values()) == 1


@pytest.mark.soak_on("mysql")
def test_tables_that_were_left_out_are_loaded_under_a_writer(server: MariaDb, tmp_path: Path) -> None:
    # S4-24 R-34
    pumps, clock, writer = DyingPumps(), CountingClock(), Writer(server, random.Random(0))
    writer.create()
    with closing(Followed(server, tmp_path, pumps, clock, **FIRST)) as followed:
        writer.change(20)
        followed.wait_until_published()
        check(server, followed, pumps, set(TABLES) - set(LATER))
        assert followed.catalog.find_table("s1", DB, "number") is None
    writer.change(20)
    pumps.before = lambda _: writer.change(1)
    with closing(Followed(server, tmp_path, pumps, clock, **NOW)) as followed:
        followed.wait_until_loaded()
        shown = followed.progress[-1].to_json()
        assert (shown["tables"], shown["tables_done"]) == (len(LATER), len(LATER))
        pumps.before = lambda _: None
        writer.change(20)
        followed.wait_until_published()
        check(server, followed, pumps)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 4))])
def test_a_load_under_ddl_and_kills_is_exact(server: MariaDb, tmp_path: Path, seed: int) -> None:
    """The feeder dies in the middle of rounds; between them, tables are altered, truncated and replaced."""
    # S4-24 R-34
    draw = random.Random(seed)
    pumps, clock, writer = DyingPumps(), CountingClock(), Writer(server, draw)
    writer.create()
    with closing(Followed(server, tmp_path, pumps, clock, **FIRST)) as followed:
        followed.wait_until_published()
    # What is loaded already, too, is loaded again.
    add_request(tmp_path, "s1", [(DB, "big"), (DB, "clock")])
    pumps.before = lambda _: writer.change(1)
    for dies_after in (draw.randint(2, 4), draw.randint(2, 5), draw.randint(3, 9), 0):
        pumps.dies_at = pumps.calls + dies_after if dies_after else 0
        with closing(Followed(server, tmp_path, pumps, clock, **NOW)) as followed:
            if not dies_after:
                followed.wait_until_loaded()
            elif not isinstance(followed.ended.get(timeout=60), KeyboardInterrupt):
                raise AssertionError(followed.worker.failure)
        writer.alter()
        writer.change(3)
    pumps.before, pumps.dies_at = lambda _: None, 0
    with closing(Followed(server, tmp_path, pumps, clock, **NOW)) as followed:
        followed.wait_until_published()
        check(server, followed, pumps)
        assert list_requests(tmp_path, "s1") == []


STATEMENTS = {
    "rename": [f"RENAME TABLE {DB}.word TO {DB}.moved", f"INSERT INTO {DB}.moved VALUES ('zz', 99, 'later')"],
    "column": [f"ALTER TABLE {DB}.word MODIFY v VARCHAR(40)", f"UPDATE {DB}.word SET v = CONCAT(v, u)"],
    "key": [f"ALTER TABLE {DB}.word MODIFY id VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"],
    "other key": [f"ALTER TABLE {DB}.word DROP PRIMARY KEY, ADD PRIMARY KEY (u)"],
    "truncate": [f"TRUNCATE TABLE {DB}.word", f"INSERT INTO {DB}.word VALUES ('a', 1, 'later')"],
    "drop": [f"DROP TABLE {DB}.word"],
    "again": [f"DROP TABLE {DB}.word", f"CREATE TABLE {DB}.word (id INT PRIMARY KEY, u INT UNIQUE)"],
    "exchange": [
        f"CREATE TABLE {DB}.plain LIKE {DB}.parts", f"ALTER TABLE {DB}.plain REMOVE PARTITIONING",
        f"INSERT INTO {DB}.plain VALUES (7, 'plain')",
        f"ALTER TABLE {DB}.parts EXCHANGE PARTITION p0 WITH TABLE {DB}.plain",
    ],
}  # fmt: skip


@pytest.mark.soak_on("mysql")
@pytest.mark.parametrize("kind", STATEMENTS)
def test_ddl_between_rounds_is_replicated_or_begins_again(server: MariaDb, tmp_path: Path, kind: str) -> None:
    # S4-24
    pumps, clock, writer = DyingPumps(), CountingClock(), Writer(server, random.Random(0))
    writer.create()
    ranges = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (50), PARTITION p1 VALUES LESS THAN (900))"
    execute(server, f"CREATE TABLE {DB}.parts (id INT PRIMARY KEY, v VARCHAR(20)) {ranges}")
    execute(server, f"INSERT INTO {DB}.parts SELECT u, v FROM {DB}.word UNION ALL SELECT u + 100, v FROM {DB}.word")
    left_out = ("word", "parts")
    settings = {"snapshot": {**SNAPSHOT, "threads": 1}}
    first = {**settings, "ignore-tables": [f"{DB}.{name}" for name in left_out]}
    with closing(Followed(server, tmp_path, pumps, clock, **first)) as followed:
        followed.wait_until_published()
    done = threading.Event()
    made = count_committed(pumps)

    def pause(_: int) -> None:
        # Between two rounds: some rows of the tables are committed.
        if count_committed(pumps) >= made + 3 and not done.is_set():
            done.set()
            raise KeyboardInterrupt

    pumps.before = pause
    with closing(Followed(server, tmp_path, pumps, clock, **settings)) as followed:
        assert isinstance(followed.ended.get(timeout=60), KeyboardInterrupt)
    execute(server, *STATEMENTS[kind])
    names = {*TABLES, "parts"} - ({"word"} if kind in ("rename", "drop") else set())
    names |= {"plain"} if kind == "exchange" else {"moved"} if kind == "rename" else set()
    with closing(Followed(server, tmp_path, pumps, clock, **settings)) as followed:
        followed.wait_until_loaded()
        followed.wait_until_published()
        check(server, followed, pumps, names)
        texts = [job["query"] for job in followed.journal.read_jobs()]
    # Its first creation, and another one where ranges that were read have no meaning any more.
    assert sum("CREATE TABLE" in text and "`word`" in text for text in texts) == (
        2 if kind in ("key", "other key", "again") else 1
    )


def test_a_paused_load_and_one_that_is_refused_let_the_log_go_on(server: MariaDb, tmp_path: Path) -> None:
    # S4-24
    pumps, clock = DyingPumps(), CountingClock()
    execute(server, f"CREATE TABLE {DB}.t (id INT PRIMARY KEY, v INT)", f"INSERT INTO {DB}.t VALUES (1, 1), (2, 2)")
    execute(server, f"CREATE TABLE {DB}.later (id INT) ENGINE = MyISAM", f"INSERT INTO {DB}.later VALUES (1)")
    first = {**FIRST, "ignore-tables": [f"{DB}.later"]}
    with closing(Followed(server, tmp_path, pumps, clock, **first)) as followed:
        followed.wait_until_published()
    set_paused(tmp_path, "s1", paused=True)
    with closing(Followed(server, tmp_path, pumps, clock, **NOW)) as followed:
        wait_until(lambda: "no consistent snapshot" in followed.worker.trouble, seconds=20)
        execute(server, f"INSERT INTO {DB}.t VALUES (3, 3)")
        followed.wait_until_published()
        assert followed.catalog.find_table("s1", DB, "later") is None
    execute(server, f"ALTER TABLE {DB}.later ENGINE = InnoDB")
    with closing(Followed(server, tmp_path, pumps, clock, **NOW)) as followed:
        wait_until(lambda: followed.progress and followed.progress[-1].state == "paused", seconds=20)
        execute(server, f"INSERT INTO {DB}.later VALUES (2)", f"UPDATE {DB}.t SET v = 7")
        followed.wait_until_published()
        assert not followed.worker.trouble
        set_paused(tmp_path, "s1", paused=False)
        followed.wait_until_loaded()
        execute(server, f"INSERT INTO {DB}.later VALUES (3)")
        followed.wait_until_published()
        check(server, followed, pumps, ["t", "later"])


def test_a_table_whose_log_stops_the_source_is_loaded(server: MariaDb, tmp_path: Path) -> None:
    """Its definition never reached the log, or is another one than there."""
    # S4-24 R-11
    pumps, clock = DyingPumps(), CountingClock()
    execute(server, f"CREATE TABLE {DB}.t (id INT PRIMARY KEY, v INT)", f"INSERT INTO {DB}.t VALUES (1, 1)")
    with closing(Followed(server, tmp_path, pumps, clock, **NOW)) as followed:
        followed.wait_until_published()
    execute(
        server, "SET sql_log_bin = 0", f"CREATE TABLE {DB}.hidden (id INT PRIMARY KEY, v INT)",
        f"ALTER TABLE {DB}.t MODIFY v BIGINT", f"INSERT INTO {DB}.hidden VALUES (1, 1)", "SET sql_log_bin = 1",
        f"INSERT INTO {DB}.hidden VALUES (2, 2)", f"INSERT INTO {DB}.t VALUES (2, 2)",
    )  # fmt: skip
    for name in ("hidden", "t"):
        with closing(Followed(server, tmp_path, pumps, clock, **NOW)) as followed:
            failure = followed.ended.get(timeout=20)
            assert isinstance(failure, SchemaError)
            assert failure.where["table"].endswith(name)
            if name == "hidden":
                assert "binlake feeder load-table --source s1 --table snapload.hidden" in failure.hint
        add_request(tmp_path, "s1", [(DB, name)])
    with closing(Followed(server, tmp_path, pumps, clock, **NOW)) as followed:
        followed.wait_until_loaded()
        execute(server, f"UPDATE {DB}.hidden SET v = 7", f"UPDATE {DB}.t SET v = 7")
        followed.wait_until_published()
        check(server, followed, pumps, ["t", "hidden"])


def test_the_command_asks_the_feeder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "feeder.toml"
    config.write_text(
        f'data-dir = "{tmp_path / "feeder"}"\n[tracker]\n[[source]]\nname = "s1"\nignore-tables = ["d.out"]\n',
        encoding="utf-8",
    )
    words = ["feeder", "load-table", "--config", str(config), "--source"]
    assert run([*words, "s1", "--table", "d.t", "--table", "d.u"]) == 0
    assert "will load d.t, d.u" in capsys.readouterr().out
    [request] = list_requests(tmp_path / "feeder", "s1")
    assert request.tables == (("d", "t"), ("d", "u"))
    assert list_requests(tmp_path / "feeder", "s2") == []
    for wrong, reason in ((["s2", "--table", "d.t"], "one of s1"), (["s1", "--table", "t"], "DB.TABLE")):
        assert run([*words, *wrong]) != 0
        assert reason in capsys.readouterr().err
    assert run([*words, "s1", "--table", "d.out"]) != 0
    assert "remove it from ignore-tables" in capsys.readouterr().err


def count_committed(pumps: DyingPumps) -> int:
    return sum(1 for binlog in committed(pumps) if not binlog.ddl_job_id)
