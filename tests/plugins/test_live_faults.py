"""Each part of a running replication dies, is told by page, JSON and commands, and is forgotten once it is back.

`make test` kills and silences the servers; `make soak` also brings about the states whose rules tests/health proves.
Every test begins and ends with a replication that is `running`. The scheduler of this Airflow is its rows of Airflow's
own database: a real one would cost as much as all other parts. A TiDB is a recorded one, with entries in PD.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.airflow_dags import beat_scheduler, forget_scheduler, register_dag, run_for_long
from support.faultworld import FaultWorld, revived, until
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows
from support.replication_files import write_replication

from binlake import tso
from binlake.cluster.placement import EtcdClient
from binlake.config import load_replication
from binlake.health import surroundings
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pump_service.statusport import StatusServer
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes, build_status_server
from binlake_airflow.operators.waiting import FreeTrigger
from deploy.local.ports import free_port

pytestmark = [pytest.mark.airflow, pytest.mark.mariadb, pytest.mark.usefixtures("airflow_db")]

CAPTURE = Capture(Path(__file__).resolve().parents[1] / "captures" / "keys")
View = dict[str, Any]
TTL = b"/topology/tidb/10.0.0.1:4000/ttl"


class Page:
    """The replication's page and its JSON, as a user reads them."""

    def __init__(self, client: httpx.Client, bearer: dict[str, str], world: FaultWorld, name: str) -> None:
        self._client, self._bearer, self.world, self._name = client, bearer, world, name

    def look(self) -> View:
        """The JSON, which the page confirms. Both are read again if the replication changed in between."""
        while True:
            before, text, view = self.read_json(), self._get("").text, self.read_json()
            if _list_told(before) == _list_told(view):
                assert _parse_told(text) == _list_told(view)
                assert f"</svg>{view['state'].capitalize()}</span></div>" in text
                return view

    def until(self, state: str, *texts: str) -> View:
        """Wait until the state is `state` and each text begins a problem; then the lists' state is the same."""
        seen: list[View] = []

        def matches(view: View) -> bool:
            seen[:] = [view]
            told = [problem["text"] for problem in view["problems"]]
            return view["state"] == state and all(any(one.startswith(text) for one in told) for text in texts)

        def reached() -> View | None:
            # Waiting reads only the JSON: each answer takes tens of milliseconds of CPU.
            return view if matches(self.read_json()) and matches(view := self.look()) else None

        try:
            return dict(until(state, reached))
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen[-1]['state']}, {seen[-1]['problems']}") from None

    def until_running(self) -> View:
        """Apply what is published until nothing is wrong; every lag is then known."""

        def is_running(view: View) -> bool:
            return bool(view["state"] == "running" and view["problems"] == [])

        def reached() -> View | None:
            self.world.run_window()
            return view if is_running(self.read_json()) and is_running(view := self.look()) else None

        view = dict(until("running", reached))
        assert None not in list_lags(view)
        return view

    def _get(self, api: str) -> httpx.Response:
        return self._client.get(f"/binlake{api}/dags/{self._name}", headers=self._bearer)

    def read_json(self) -> View:
        """The JSON alone."""
        return dict(self._get("/api").json())


def _list_told(view: View) -> list[tuple[str, str]]:
    """(state, text) of each problem without its numbers, then which lags are known."""
    told = [(problem["state"], re.sub(r"[\d.,]+", "#", problem["text"])) for problem in view["problems"]]
    return [*told, *(("lag", "unknown" if lag is None else "#") for lag in list_lags(view))]


def _parse_told(text: str) -> list[tuple[str, str]]:
    told = re.findall(r'<p><strong>(\w+):</strong> <span class="what">(.*?)</span></p>', text, re.S)
    tiles = text[text.index('<dl class="tiles">') : text.index('<ul class="said">')]
    lags = re.findall(r'<span class="lag">\s*<button[^>]*>(?:lag (unknown)|[^<]*)</button>', tiles)
    problems = [(state.lower(), re.sub(r"[\d.,]+", "#", html.unescape(one.strip()))) for state, one in told]
    return [*problems, *(("lag", lag or "#") for lag in lags)]


def list_lags(view: View) -> list[float | None]:
    """The lags of the lake and of the target."""
    return [place["lag_seconds"] for place in (view["landed"], view["sinks"].get("sql")) if place is not None]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, mariadb: MariaDb) -> Iterator[FaultWorld]:
    mariadb.wipe()
    with ExitStack() as stack:
        source = stack.enter_context(mariadb_in_memory(MariaDb.list_source_options(7)))
        stack.enter_context(revived(source, mariadb))
        yield stack.enter_context(FaultWorld(tmp_path_factory.mktemp("faults"), source, mariadb))
        forget_scheduler()


@pytest.fixture
def page(
    server: httpx.Client, bearer: dict[str, str], folder: Path, world: FaultWorld, monkeypatch: pytest.MonkeyPatch
) -> Page:
    """The page of the replication, which is running; no answer of a dead server is kept for later pages."""
    for name in ("_PD_REST_S", "_SOURCE_REST_S"):
        monkeypatch.setattr(surroundings, name, 0.0)
    monkeypatch.setattr(surroundings, "_KEEP_S", {True: 0.0, False: 0.0})
    name = register_dag(world.write_replication(folder), paused=False)
    beat_scheduler(-3600)
    run_for_long(name, -3600)
    made = Page(server, bearer, world, name)
    made.until_running()
    return made


@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.soak), "kill9"])
def test_source_that_is_shut_down_or_killed(page: Page, how: str) -> None:
    world = page.world
    assert world.ask_feeder()[0] == 0
    with revived(world.source):
        getattr(world.source, "stop" if how == "stop" else "kill9")()
        view = page.until("unreachable", *(f"the source {name} makes no progress: " for name in ("one", "two")))
        assert list_lags(view) == [None, None]
        assert view["source"]["lag_seconds"] is None
        status, [one, _] = world.ask_feeder()
        assert (status, one["heard"], one["trouble"] != "") == (1, False, True)
    page.until_running()
    assert world.ask_feeder()[0] == 0


def test_source_that_falls_silent(page: Page) -> None:
    world = page.world
    world.link.freeze()
    try:
        view = page.until("unreachable", "the source one ")
        status, [one, _] = world.ask_feeder()
        assert (list_lags(view), status, one["heard"]) == ([None, None], 1, False)
        before = one["heard_s"]
        world.until_feeder(lambda sources: sources[0]["heard_s"] > before)
    finally:
        world.link.cut()
        world.link.mend()
    page.until_running()


@pytest.mark.soak
def test_log_that_cannot_be_read_any_further(page: Page) -> None:
    world, one = page.world, page.world.describe_source("one")
    odd = world.describe_source("odd", start={"mode": "position", "file": "binlog.000099"})
    restart_feeder(world, [one, odd], heard=False)
    view = page.until("failing", "the feeder has stopped reading the source odd: ")
    assert list_lags(view) == [None, None]
    found = world.until_feeder(lambda sources: sources[0]["heard"])
    assert (world.ask_feeder()[0], [source["state"] for source in found]) == (1, ["reading", "failed"])
    # A feeder ends with its last source, so that whatever supervises it can see the end.
    restart_feeder(world, [odd], heard=False)
    page.until("unreachable", "the status port of the source does not answer")
    world.feeder.wait_for_failure()
    assert world.ask_feeder() == (1, [])
    restart_feeder(world, [one, world.describe_source("two")])
    page.until_running()


def test_pump_that_is_killed(page: Page) -> None:
    world = page.world
    world.pump.kill9()
    world.insert(100)
    view = page.until("unreachable", "the source one makes no progress: ", "without a heartbeat: pump1")
    earlier = list_lags(view)
    status, [one, _] = world.ask_feeder()
    assert (status, one["trouble"] != "", one["lag_s"] > 0) == (1, True, True)
    world.until_feeder(lambda sources: sources[0]["lag_s"] > one["lag_s"] + 0.5)
    assert all(now > then for now, then in zip(list_lags(page.look()), earlier, strict=True))
    status, told = world.run_window()
    assert (status, "blocked" in told, "pump1" in told) == (0, True, True)
    page.until("blocked", "blocked by pump1: ", "without a heartbeat: pump1")
    world.pump.start()
    wait_for_row(page, 100)
    assert world.ask_feeder()[0] == 0


def test_pump_that_comes_back_empty(page: Page) -> None:
    world, data = page.world, page.world.folder / "pump1"
    kept = data.with_name("pump1 before")
    # The feeder would publish to the empty directory, which does not stay.
    world.feeder.kill9()
    world.pump.kill9()
    world.run_window()
    page.until("blocked", "blocked by pump1: pump1 since ", "without a heartbeat: pump1")
    waiting = wait_as_plan_does(page)
    assert "unreachable" in waiting.find_obstacle()
    data.rename(kept)
    world.pump.start()
    try:
        # At the first look at which the pump answers, the waiting task goes on and plans again.
        until("another cause", lambda: waiting.find_obstacle() == "")
        world.run_window()
        (told,) = [one["text"] for one in page.look()["problems"] if one["state"] == "blocked"]
        assert "it has another data directory" in told
        until("a heartbeat", lambda: "heartbeat" not in str(page.look()["problems"]))
    finally:
        world.pump.kill9()
        shutil.rmtree(data)
        kept.rename(data)
        world.pump.start()
        world.feeder.start()
    page.until_running()


def test_placement_driver_that_dies(page: Page) -> None:
    world = page.world
    world.driver.stop()
    try:
        world.insert(200)
        view = page.until("unreachable", "PD did not answer", "the source one makes no progress: ")
        earlier = list_lags(view)
        assert all(now > then for now, then in zip(list_lags(page.look()), earlier, strict=True))
        assert world.ask_feeder()[0] == 1
        assert world.run_window()[0] == 1
    finally:
        world.restart_driver()
    wait_for_row(page, 200)


def test_feeder_that_is_killed(page: Page) -> None:
    world = page.world
    world.feeder.kill9()
    view = page.until("unreachable", "the status port of the source does not answer")
    assert list_lags(view) == [None, None]
    assert world.ask_feeder() == (1, [])
    world.feeder.start()
    page.until_running()
    assert world.ask_feeder()[0] == 0


@pytest.mark.soak
def test_full_load_that_waits_and_then_lasts(page: Page) -> None:
    world = page.world
    # Only `late` is read through the link.
    one = world.describe_source("one", host=world.source.host, port=world.source.port)
    late = world.describe_source(
        "late", start={"mode": "snapshot"}, snapshot={"chunk-rows": 10}, **{"read-timeout": 60.0}
    )
    execute(
        world.source, "CREATE DATABASE late", "CREATE TABLE late.t (id INT PRIMARY KEY)",
        "INSERT INTO late.t SELECT seq FROM late.seq_1_to_2000",
    )  # fmt: skip
    with world.source.connect() as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES late.t WRITE")
        restart_feeder(world, [one, late], heard=False)
        view = page.until("unreachable", "the source late makes no progress: ")
        # It stays so while the load tries again and again.
        for _ in range(8):
            status, [_, told] = world.ask_feeder()
            assert (list_lags(view), status, told["state"]) == ([None, None], 1, "loading")
            assert "waits for a lock at the source" in told["trouble"]
            assert page.read_json()["state"] == "unreachable"
        assert page.look()["state"] == "unreachable"
        cursor.execute("UNLOCK TABLES")

    def reads(sources: list[dict[str, Any]]) -> bool:
        # Between two looks, the load gets a small part of its rows: it has not ended when this has seen it read.
        world.link.meter(4000)
        return sources[1]["load"]["rows"] > 100 and not sources[1]["trouble"]

    # One of the load's sessions may give up just before the lock is gone: that attempt reads some rows and fails.
    world.link.meter(4000)
    world.until_feeder(reads)
    world.link.freeze()
    try:
        view = page.until("attention", "the full load of the source late has not ended: ")
        assert (list_lags(view), world.ask_feeder()[0]) == ([None, None], 0)
    finally:
        world.link.cut()
        world.link.mend()
    loaded = "SELECT COUNT(*) FROM late.t"
    until("the load at the target", lambda: page.until_running() and rows(world.target, loaded) == [(2000,)])
    restart_feeder(world, [world.describe_source(name) for name in ("one", "two")])


def test_target_that_stops(page: Page) -> None:
    world = page.world
    with revived(world.target):
        world.target.stop()
        view = page.until("unreachable", "nothing listens at the target's address")
        world.insert(300)
        assert world.run_window()[0] == 1
        later = page.until("failing", "nothing listens at the target's address")
        assert (list_lags(later)[1] or 0) > (list_lags(view)[1] or 0)
    wait_for_row(page, 300)


@pytest.mark.soak
def test_target_that_is_behind(page: Page, folder: Path) -> None:
    page.world.write_replication(folder, lag_alert_s=1)
    view = page.until("behind", "more than 1 s behind the source: the lake (")
    assert all((lag or 0) > 1 for lag in list_lags(view))
    page.world.write_replication(folder)
    page.until_running()


@pytest.mark.soak
def test_scheduler_that_dies_while_a_run_is_active(page: Page) -> None:
    beat_scheduler(60)
    page.until("standing", "Airflow's scheduler has sent no heartbeat for ")
    beat_scheduler(-3600)
    page.until_running()
    run_for_long("faults", 600)
    page.until("standing", "run active is active but nobody works on it")
    run_for_long("faults", -3600)
    page.until_running()


@pytest.mark.soak
def test_spark_server_that_is_dead(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": free_port()}
    monkeypatch.setenv("AIRFLOW_CONN_FAULTS", json.dumps(connection))
    page.until("unreachable", "nothing listens at the address of Spark")
    page.world.insert(400)
    until("applied", lambda: page.world.run_window()[0] == 0 and 400 in list_keys(page.world))
    monkeypatch.delenv("AIRFLOW_CONN_FAULTS")
    page.until_running()


@pytest.mark.soak
def test_lake_that_cannot_be_read(page: Page, server: httpx.Client, bearer: dict[str, str]) -> None:
    log = page.world.folder / "lake" / "faults" / "window" / "_delta_log"
    newest = max(int(one.stem) for one in log.glob("*.json"))
    torn = log / f"{newest + 1:020}.json"
    torn.write_text("{}}")
    try:
        answer = server.get("/binlake/api/dags/faults", headers=bearer)
        assert (answer.status_code, answer.json()["error"]) == (503, "the lake cannot be read")
        listed = server.get("/binlake/api", headers=bearer).json()["replications"]
        assert ["its lake cannot be read" in one["problem"] for one in listed if one["name"] == "faults"] == [True]
        assert page.world.run_window()[0] == 1
    finally:
        torn.unlink()
    page.until_running()


def test_servers_of_a_tidb_that_stop(server: httpx.Client, bearer: dict[str, str], folder: Path, page: Page) -> None:
    world = page.world
    with ExitStack() as stack, closing(EtcdClient([world.pd_url])) as etcd:
        first, second = (stack.enter_context(serve_tidb()) for _ in range(2))
        own = f'pd-urls = "{world.pd_url}"\nstatus-url = "{first.url},{second.url}"'
        file = write_replication(folder, "recorded", source=own, target=None, mirror="enabled = false")
        log, now = WindowLog(LakePaths.of(load_replication(file, secrets=False))), time.time_ns()
        hi = tso.compose(now // 1_000_000)
        log.record(WindowEvent("land", hi - 1, hi, "done", 3, 0.5, "r"))
        seen = Page(server, bearer, world, "recorded")
        assert None not in list_lags(seen.until("running"))
        first.stop()
        assert None not in list_lags(seen.until("attention", "addresses in source.status-url that are silent: 1"))
        second.stop()
        silent = "the status port of the source does not answer"
        assert list_lags(seen.until("unreachable", silent)) == [None]
        # Its entry in PD tells that a TiDB lives although no status port is reached from here.
        etcd.put(TTL, str(now + 60 * 10**9).encode())
        seen.until("attention", "addresses in source.status-url that are silent: 2")
        etcd.put(TTL, str(now - 100 * 10**9).encode())
        seen.until("unreachable", silent)
        etcd.delete(TTL)
        stack.enter_context(serve_tidb(first.url.removeprefix("http://")))
        stack.enter_context(serve_tidb(second.url.removeprefix("http://")))
        assert None not in list_lags(seen.until("running"))


def serve_tidb(addr: str = "127.0.0.1:0") -> StatusServer:
    """The status port of a recorded TiDB, not started."""
    return build_status_server(CAPTURE, Outcomes.of(CAPTURE), lambda: tso.MAX_TS, addr)


def restart_feeder(world: FaultWorld, sources_now: list[dict[str, Any]], *, heard: bool = True) -> None:
    """Kill the feeder and start it with these sources; by default wait until it hears them all."""
    world.feeder.kill9()
    world.write_feeder(sources_now)
    world.feeder.start()
    if heard:
        world.until_feeder(lambda found: [one["heard"] for one in found] == [True] * len(sources_now))


def wait_as_plan_does(page: Page) -> FreeTrigger:
    """What a blocked plan of a run leaves in Airflow's triggerer."""
    view = page.read_json()
    lo, cause = view["landed"]["commit_ts"], view["blocked"]["reason"]
    return FreeTrigger(replication_file=str(page.world.file), until=time.time() + 600, lo=lo, cause=cause)


def list_keys(world: FaultWorld) -> list[int]:
    """The keys of the rows at the target."""
    return [key for (key,) in rows(world.target, "SELECT id FROM faults.t")]


def wait_for_row(page: Page, key: int) -> None:
    """Wait until the replication runs again and the row that was committed meanwhile is at the target."""
    until(f"row {key}", lambda: page.until_running() and key in list_keys(page.world))
