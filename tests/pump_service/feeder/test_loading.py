"""An unfinished load is never visible, and starts again with the definitions of that time."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, DyingPumps, Loaded, committed, filled, rows_of
from support.mariadb import MariaDb, execute, rows

from binlake.errors import SourceRefused
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.pump_service.feeder.connection import open_log
from binlake.pump_service.feeder.publisher import read_key
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.loading import needs_load
from binlake.pump_service.feeder.snapshot.loadstate import read_load_record
from binlake.pump_service.feeder.snapshot.reading import SnapshotReader, Value
from binlake.pump_service.feeder.sources import start_at_log
from binlake.wire import binlog_pb2 as pb

pytestmark = pytest.mark.mariadb


@pytest.fixture
def server(mariadb_source: MariaDb) -> Iterator[MariaDb]:
    """With one table of 100 rows."""
    yield filled(mariadb_source)
    execute(mariadb_source, f"DROP DATABASE IF EXISTS {DB}")


@pytest.fixture(params=["mariadb_source", "mysql"])
def either(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """A server of each family, filled as `server`."""
    server: MariaDb = request.getfixturevalue(request.param)
    yield filled(server)
    execute(server, f"DROP DATABASE IF EXISTS {DB}")


def test_definitions_are_published_first_and_all_rows_committed_together(either: MariaDb, tmp_path: Path) -> None:
    # S4-24
    pumps = DyingPumps()
    with closing(Loaded(either, tmp_path, pumps, CountingClock())) as loaded:
        assert needs_load(loaded.journal, loaded.source)
        loaded.load()
        assert not needs_load(loaded.journal, loaded.source)
        done = committed(pumps)
        assert [binlog.ddl_query.split(b"(")[0].split() for binlog in done[:2]] == [
            [b"CREATE", b"DATABASE", *done[0].ddl_query.split()[2:]],
            [b"CREATE", b"TABLE", b"`%s`.`t`" % DB.encode()],
        ]
        assert rows_of(done) == 100
        assert len(done) == 2 + 3
        record = read_load_record(loaded.journal, "s1")
        assert (record["state"], record["rows"], record["tables"]) == ("done", 100, 1)
        assert int(record["commit_ts"]) == loaded.journal.read_last_commit_ts()
        assert loaded.journal.read_positions()["s1"].position.gtids
        assert len({(read_key(binlog.prewrite_key) or (0, ""))[1] for binlog in done}) == len(done)
        jobs = loaded.journal.read_jobs()
        assert max(job["binlog"]["FinishedTS"] for job in jobs) < min(binlog.start_ts for binlog in done[2:])
        assert [progress.to_json()["state"] for progress in loaded.progress] == ["done"]


def test_rows_of_tables_outside_the_lists_are_not_read(server: MariaDb, tmp_path: Path) -> None:
    # S4-52: DM's lists limit the rows of a load; tables that are not loaded are defined all the same
    execute(server, f"CREATE TABLE {DB}.log (id INT PRIMARY KEY)", f"INSERT INTO {DB}.log VALUES (1), (2)")
    pumps = DyingPumps()
    lists = {"block-allow-list": {"do-dbs": [DB], "ignore-tables": [{"db-name": DB, "tbl-name": "l*"}]}}
    with closing(Loaded(server, tmp_path, pumps, CountingClock(), **lists)) as loaded:
        loaded.load()
        assert rows_of(committed(pumps)) == 100
        assert read_load_record(loaded.journal, "s1")["tables"] == 1
        assert loaded.catalog.find_table("s1", DB, "log") is not None


def test_a_killed_load_starts_again_with_the_present_definitions(either: MariaDb, tmp_path: Path) -> None:
    server = either
    pumps, clock = DyingPumps(), CountingClock()
    pumps.dies_at = 2  # the definitions are published, no rows
    with closing(Loaded(server, tmp_path, pumps, clock)) as loaded, pytest.raises(KeyboardInterrupt):
        loaded.load()
    assert rows_of(committed(pumps)) == 0
    execute(server, f"ALTER TABLE {DB}.t ADD COLUMN w INT", f"CREATE TABLE {DB}.other (id INT)")
    with closing(Loaded(server, tmp_path, pumps, clock)) as loaded:
        assert needs_load(loaded.journal, loaded.source)
        loaded.load()
        table = loaded.catalog.find_table("s1", DB, "t")
        assert table is not None
        assert [column.name for column in table.columns] == ["id", "v", "w"]
    texts = [binlog.ddl_query.split(b"(")[0].strip().decode() for binlog in committed(pumps) if binlog.ddl_query]
    name = f"`{DB}`.`t`"
    assert [text.split(" DEFAULT")[0].rstrip(";") for text in texts] == [
        f"CREATE DATABASE `{DB}`", f"CREATE TABLE {name}",
        f"DROP TABLE {name}", f"CREATE TABLE `{DB}`.`other`", f"CREATE TABLE {name}",
    ]  # fmt: skip
    assert rows_of(committed(pumps)) == 100


def test_ddl_during_a_load_requires_a_new_snapshot(
    server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pumps, values, altered = DyingPumps(), SnapshotReader.read_values, threading.Event()

    def read(self: SnapshotReader) -> Generator[Value]:
        if not altered.is_set():
            altered.set()
            execute(server, f"ALTER TABLE {DB}.t DROP COLUMN v")
        return values(self)

    monkeypatch.setattr(SnapshotReader, "read_values", read)
    with closing(Loaded(server, tmp_path, pumps, CountingClock())) as loaded:
        loaded.load()
        assert len(loaded.progress) == 2
    assert rows_of(committed(pumps)) == 100
    last = [binlog.ddl_query for binlog in committed(pumps) if binlog.ddl_query][-1]
    assert b"`v`" not in last


def test_a_start_from_a_dump_uses_its_position_and_definitions(server: MariaDb, tmp_path: Path) -> None:
    # S4-24
    dump = tmp_path / "dump"
    dump.mkdir()
    ((_, database),) = rows(server, f"SHOW CREATE DATABASE {DB}")
    ((_, table),) = rows(server, f"SHOW CREATE TABLE {DB}.t")
    ((file, offset, *_),) = rows(server, "SHOW MASTER STATUS")
    (dump / f"{DB}-schema-create.sql").write_text(f"{database};\n")
    (dump / f"{DB}.t-schema.sql").write_text(f"/*!40101 SET NAMES binary*/;\n{table};\n")
    (dump / "metadata").write_text(f"SHOW MASTER STATUS:\n\tLog: {file}\n\tPos: {offset}\n")
    execute(server, f"ALTER TABLE {DB}.t DROP COLUMN v")
    with closing(Loaded(server, tmp_path / "feeder", DyingPumps(), CountingClock())) as loaded:
        source = SourceFile.model_validate(
            {"name": "s1", "host": server.host, "port": server.port, "start": {"mode": "dump", "definitions": dump}}
        )
        assert not needs_load(loaded.journal, source)
        start_at_log(source, loaded.journal, loaded.publisher, loaded.catalog)
        position = loaded.journal.read_positions()["s1"].position
        assert (position.file, position.offset) == (file, offset)
        definition = loaded.catalog.find_table("s1", DB, "t")
        assert definition is not None
        assert [column.name for column in definition.columns] == ["id", "v"]
        assert len(loaded.journal.read_jobs()) == 2


def test_without_a_dump_the_definitions_are_those_of_the_target(server: MariaDb, tmp_path: Path) -> None:  # S4-25
    replication = tmp_path / "shop.toml"
    replication.write_text(
        f"""name = "shop"
lake.path = "{tmp_path / "lake"}"
target = {{ host = "{server.host}", port = {server.port} }}
routes = [{{ schema-pattern = "{DB}", table-pattern = "t", target-schema = "{DB}_copy", target-table = "all_t" }}]
"""
    )
    ((file, offset, *_),) = rows(server, "SHOW MASTER STATUS")
    execute(
        server,
        f"INSERT INTO {DB}.t VALUES (100001, 7)",
        f"ALTER TABLE {DB}.t ADD COLUMN later INT",
        f"CREATE OR REPLACE DATABASE {DB}_copy",
    )
    start = {"mode": "position", "file": file, "offset": offset, "target": replication}
    source = SourceFile.model_validate({"name": "s1", "host": server.host, "port": server.port, "start": start})
    with closing(Loaded(server, tmp_path / "feeder", DyingPumps(), CountingClock())) as loaded:
        begin = partial(start_at_log, source, loaded.journal, loaded.publisher, loaded.catalog)
        with pytest.raises(SourceRefused, match=rf"(?s)does not have this table.*{DB}_copy\.all_t"):
            begin()
        execute(server, f"CREATE TABLE {DB}_copy.all_t LIKE {DB}.t", f"ALTER TABLE {DB}_copy.all_t DROP COLUMN later")
        begin()
        definition = loaded.catalog.find_table("s1", DB, "t")
        assert definition is not None
        assert [column.name for column in definition.columns] == ["id", "v"]
        with closing(open_log(source, 77, loaded.journal.read_positions()["s1"].position)) as source_log:
            changes = source_log.read(1, 1 << 20, 60.0)[0].changes
            source_log.end()
        (value,) = encode_transactions([changes], partial(loaded.catalog.find_definition, "s1"), 1)
        (mutation,) = pb.PrewriteValue.FromString(value).mutations
        assert (mutation.table_id, len(mutation.inserted_rows)) == (definition.id, 1)
    execute(server, f"DROP DATABASE {DB}_copy")


def test_an_empty_source_is_loaded(server: MariaDb, tmp_path: Path) -> None:
    execute(server, f"DROP DATABASE {DB}")
    with closing(Loaded(server, tmp_path, DyingPumps(), CountingClock())) as loaded:
        loaded.load()
        assert read_load_record(loaded.journal, "s1")["state"] == "done"
        assert loaded.journal.read_positions()["s1"].position.gtids


def test_a_user_without_select_is_refused_and_named(server: MariaDb, tmp_path: Path) -> None:
    execute(
        server,
        "CREATE OR REPLACE USER reader IDENTIFIED BY 'x'",
        "GRANT REPLICATION SLAVE, BINLOG MONITOR, SHOW DATABASES ON *.* TO reader",
        f"GRANT INSERT ON {DB}.* TO reader",
    )
    with closing(Loaded(server, tmp_path, DyingPumps(), CountingClock())) as loaded:
        loaded.source = loaded.source.model_copy(update={"user": "reader", "password": "x"})
        with pytest.raises(SourceRefused, match="SELECT"):
            loaded.load()
    execute(server, "DROP USER reader")
