"""A full load that cannot begin yet says what it waits for, and begins when it can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, DyingPumps, Loaded, committed, filled, rows_of
from support.mariadb import MariaDb, execute
from support.sourcelog import source_of

from binlake.common.sql import Dialect
from binlake.errors import SourceRefused, SourceUnavailable
from binlake.pump_service.feeder import server as servers
from binlake.pump_service.feeder.snapshot import opening, structures
from binlake.pump_service.feeder.sources import start_at_log

pytestmark = pytest.mark.mariadb


@pytest.fixture(params=["mariadb_source", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    found: MariaDb = request.getfixturevalue(request.param)
    yield filled(found)
    execute(found, f"DROP DATABASE {DB}")


def _drop_before_show(server: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop the table `gone` between the moment it is listed and the moment it is shown."""
    execute(server, f"CREATE TABLE {DB}.gone (id INT PRIMARY KEY)")

    def ask_by_name(link: servers.Link, query: str, arguments: Sequence[object] = ()) -> list[dict[str, Any]]:
        if query.startswith("SHOW CREATE TABLE") and "`gone`" in query:
            execute(server, f"DROP TABLE IF EXISTS {DB}.gone")
        return servers.ask_by_name(link, query, arguments)

    monkeypatch.setattr(structures, "ask_by_name", ask_by_name)


def test_a_table_that_is_dropped_while_the_load_begins_is_left_out_by_the_next_attempt(
    server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _drop_before_show(server, monkeypatch)
    pumps = DyingPumps()
    with closing(Loaded(server, tmp_path, pumps, CountingClock())) as loaded:
        with pytest.raises(SourceUnavailable, match="definitions changed while the load read them: 1146"):
            loaded.load()
        loaded.load()
        assert rows_of(committed(pumps)) == 100
        assert loaded.catalog.find_table("s1", DB, "gone") is None


def test_the_start_at_the_log_waits_for_a_dropped_table_too(
    server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _drop_before_show(server, monkeypatch)
    with closing(Loaded(server, tmp_path, DyingPumps(), CountingClock())) as loaded:
        source = source_of(server, start={"mode": "now"})
        with pytest.raises(SourceUnavailable, match="definitions changed"):
            start_at_log(source, loaded.journal, loaded.publisher, loaded.catalog)
        start_at_log(source, loaded.journal, loaded.publisher, loaded.catalog)
        assert "s1" in loaded.journal.read_positions()


def test_a_load_that_waits_for_a_lock_says_so(server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (opening, structures):
        monkeypatch.setattr(module, "LOCK_WAIT_S", 1)
    pumps = DyingPumps()
    with closing(Loaded(server, tmp_path, pumps, CountingClock())) as loaded:
        with server.connect() as other, other.cursor() as cursor:
            cursor.execute(f"LOCK TABLES {DB}.t WRITE")
            with pytest.raises(SourceUnavailable, match=r"waits for a lock at the source: 1205.*PROCESSLIST"):
                loaded.load()
            cursor.execute("UNLOCK TABLES")
        loaded.load()
        assert rows_of(committed(pumps)) == 100


def test_a_collation_that_the_target_lacks_stops_the_load_before_a_row_is_read(server: MariaDb, tmp_path: Path) -> None:
    # Each family has collations that the other has no equal of.
    lacks: Dialect = "mysql" if server.name == "mariadb" else "mariadb"
    collation = {"mysql": "utf8mb4_croatian_mysql561_ci", "mariadb": "utf8mb4_hr_0900_ai_ci"}[lacks]
    execute(server, f"CREATE TABLE {DB}.letters (id INT PRIMARY KEY, c VARCHAR(9) COLLATE {collation})")
    pumps = DyingPumps()
    for _ in range(2):
        with closing(Loaded(server, tmp_path, pumps, CountingClock())) as loaded:
            loaded.families = (lacks,)
            with pytest.raises(SourceRefused, match=rf"not begun.*letters: {collation} \({lacks}\)"):
                loaded.load()
            assert (pumps.calls, loaded.progress) == (0, [])
    execute(server, f"ALTER TABLE {DB}.letters MODIFY c VARCHAR(9) COLLATE utf8mb4_bin")
    with closing(Loaded(server, tmp_path, pumps, CountingClock())) as loaded:
        loaded.families = (lacks,)
        loaded.load()
        assert rows_of(committed(pumps)) == 100
