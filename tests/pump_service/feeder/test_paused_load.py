"""A paused load reads nothing, holds nothing at the source, and continues; its rate can be limited and is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, DyingPumps, Loaded, committed, filled, rows_left, rows_of
from support.mariadb import MariaDb, execute, rows
from support.windows import wait_until

from binlake.cli import run
from binlake.pump_service.feeder.snapshot import control, loading, progress
from binlake.pump_service.feeder.snapshot.control import Throttle, read_paused
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress

A, B, C = (("d", name) for name in "abc")


class Clock:
    """A clock that tests set."""

    now = 100.0

    def read(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (progress, control):
        monkeypatch.setattr(module.time, "monotonic", made.read)
    return made


def test_the_end_of_each_table_follows_from_the_rate_and_the_tables_before_it(clock: Clock) -> None:
    shown = SnapshotProgress.of({A: 1000, B: 4000, C: 0}, [A, B, C])
    shown.begin_reading()
    assert shown.to_json()["seconds_left"] is None
    shown.add_rows(B, 1000, 9000)
    clock.now += 10
    state = shown.to_json()
    assert (state["rows_per_second"], state["bytes"], state["seconds_left"]) == (100.0, 9000, 40.0)
    assert {name: table["seconds_left"] for name, table in state["by_table"].items()} == {
        "d.b": 30.0, "d.a": 40.0, "d.c": 40.0,
    }  # fmt: skip
    # The estimate was too low, and the table is done: only the other one is left.
    shown.add_rows(B, 4000, 1)
    shown.finish(B)
    clock.now += 40
    assert shown.to_json()["by_table"]["d.b"]["seconds_left"] == 0.0
    assert (shown.to_json()["seconds_left"], shown.to_json()["rows_estimated"]) == (10.0, 6000)
    shown.state = "paused"
    assert (shown.to_json()["rows_per_second"], shown.to_json()["seconds_left"]) == (0, None)


def test_the_limit_is_an_average_over_ranges(clock: Clock) -> None:
    limit = Throttle(100)
    assert limit.find_wait_s() == 0
    limit.add_rows(50)
    limit.add_rows(150)
    assert limit.find_wait_s() == 2.0
    clock.now += 1.5
    assert limit.find_wait_s() == 0.5
    # What was not used before is not made up for.
    clock.now += 100
    limit.add_rows(10)
    assert limit.find_wait_s() == pytest.approx(0.1)
    unlimited = Throttle(0)
    unlimited.add_rows(1 << 40)
    assert unlimited.find_wait_s() == 0


@pytest.fixture
def server(mariadb_source: MariaDb) -> Iterator[MariaDb]:
    yield filled(mariadb_source)
    execute(mariadb_source, f"DROP DATABASE IF EXISTS {DB}")


def test_a_paused_load_has_no_session_and_continues(
    server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_PAUSE_POLL_S", 0.0)
    pumps, states = DyingPumps(), list[str]()

    def has_snapshot() -> bool:
        return bool(rows(server, "SELECT 1 FROM information_schema.innodb_trx"))

    def is_paused() -> bool:
        if pumps.calls < 6 or len(states) > 2:
            return False
        states.append(loaded.progress[-1].to_json()["state"])
        if len(states) == 2:
            wait_until(lambda: not has_snapshot())
            execute(server, f"UPDATE {DB}.t SET v = -v WHERE id IN (1, 99)")
        return True

    monkeypatch.setattr("binlake.pump_service.feeder.snapshot.chunkwriter._PREWRITE_BYTES", 1)
    with closing(Loaded(server, tmp_path, pumps, CountingClock(), **{"chunk-rows": 10, "threads": 1})) as loaded:
        loaded.is_paused = is_paused
        loaded.load()
        assert states == ["reading", "paused", "paused"]
        assert rows_left(committed(pumps), loaded.catalog) == rows_of(committed(pumps)) == 100
        assert loaded.progress[-1].to_json()["bytes"] > 100


def test_the_limit_of_a_source_holds_for_its_load(
    server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()
    find_wait_s = Throttle.find_wait_s

    def look(self: Throttle) -> float:
        waits.append(find_wait_s(self))
        self._free_at = 0.0
        return 0.0

    monkeypatch.setattr(Throttle, "find_wait_s", look)
    limited = {"chunk-rows": 10, "threads": 1, "rows-per-second": 2}
    with closing(Loaded(server, tmp_path, DyingPumps(), CountingClock(), **limited)) as loaded:
        loaded.load()
    assert waits[0] == 0
    # Before each range after the first one, and once the table has no more.
    assert [round(wait) for wait in waits[1:11]] == [5] * 10


def test_the_commands_pause_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "feeder.toml"
    config.write_text(
        f'data-dir = "{tmp_path / "feeder"}"\n[tracker]\n[[source]]\nname = "s1"\n[[source]]\nname = "s2"\n',
        encoding="utf-8",
    )
    words = ["--config", str(config), "--source"]
    assert run(["feeder", "pause-load", *words, "s2"]) == 0
    assert run(["feeder", "pause-load", *words, "s2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "s2: its full load is paused", "s2: its full load is paused, as before",
    ]  # fmt: skip
    assert read_paused(tmp_path / "feeder") == {"s2"}
    assert run(["feeder", "resume-load", *words, "s2"]) == 0
    assert read_paused(tmp_path / "feeder") == frozenset()
    assert run(["feeder", "pause-load", *words, "s3"]) != 0
    assert "one of s1, s2" in capsys.readouterr().err
