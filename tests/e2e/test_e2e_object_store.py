"""A lake in an object store: the same rows, target, mirrors and answers as on a local disk, and clear errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import WriterProperties, write_deltalake
from support.flakyproxy import FlakyProxy
from support.live import LiveSource
from support.mariadb import MariaDb, execute
from support.objectstores import (
    AZURE_ENVIRONMENT,
    S3_ENVIRONMENT,
    ObjectStore,
    describe_azurite,
    describe_s3,
)
from support.s3proxy import S3Proxy, Trouble, count_by_table
from support.sparkcluster import CREDENTIALS, find_notes, read_connected, run_on_cluster
from support.workload import integer
from test_e2e_cluster import KILLER, many_bytes
from test_e2e_window import expected, run, set_up, some_changes, tables_of, toml

from binlake.audit.audit import Audit
from binlake.common.lakecolumns import Window
from binlake.errors import Transient
from binlake.lake import access, controlrows, lease, opentable
from binlake.lake.control import COMPACT_EVERY, TIDY_EVERY
from binlake.lake.controltables import MIRROR_VERSION, PUMP_MEMBER, SCHEMA_CHANGE, SCHEMA_SNAPSHOT, WINDOW
from binlake.lake.mutations import RowVersion
from binlake.lake.objects import list_objects
from binlake.lake.storetable import StoreTable, look_once
from binlake.repair.verify import VerifyOptions, verify
from binlake.rules import Rules
from binlake.spark_jobs.commands.maintain import maintain
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window
from deploy.local.s3 import S3
from deploy.local.spark_cluster import ROOT, SparkCluster, can_hide

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]
Make = Callable[..., StageContext]
_TESTS = Path(__file__).resolve().parents[1]
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


@pytest.fixture
def make(context: Make, target: dict[str, Any], s3: S3, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make contexts with a target, mirrors and a lake in the new bucket or container `bucket` of `at`, else of S3;
    `url` is that of a proxy."""

    def build_in(bucket: str, url: str = "", engine: str = "local", at: ObjectStore | None = None) -> StageContext:
        at = at or describe_s3(s3)
        # Spark's JVM, which takes them when it starts, serves all tests of a process.
        for name, value in {**S3_ENVIRONMENT, **AZURE_ENVIRONMENT}.items():
            monkeypatch.setenv(name, value)
        at.create(bucket)
        path = f"{at.locate(bucket)}/lakes".replace("s3://", "s3a://")
        storage = {"endpoint": at.build_endpoint(url or f"http://127.0.0.1:{at.port}")}
        lake = {"path": path, "storage": storage}
        return context(target=target, mirror={"enabled": True}, lake=lake, window={"engine": engine})

    return build_in


def open_store(kind: str, request: pytest.FixtureRequest) -> ObjectStore:
    if kind == "azure":
        return describe_azurite(request.getfixturevalue("azurite"))
    return describe_s3(request.getfixturevalue("s3"))


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["s3", pytest.param("azure", marks=pytest.mark.soak)])
def test_spark_tasks_read_and_write_a_lake_in_an_object_store(
    source: LiveSource, make: Make, mariadb: MariaDb, kind: str, request: pytest.FixtureRequest
) -> None:
    """All rows are written and read by tasks, in parts that they put themselves; only the driver commits."""
    set_up(source.workload)
    some_changes(source.workload, 1)
    source.workload.add_column("d", "t", integer("c", default="7"))
    some_changes(source.workload, 2)
    at = open_store(kind, request)
    with S3Proxy(at.port) as proxy:
        ctx = make("spark", proxy.url, engine="spark", at=at)
        run(ctx, source)
        asked = proxy.take_requests()
        ended = {event["stage"]: json.loads(event["detail"]) for event in ctx.windows.read_events()}
        left = list_objects(ctx.paths.root, "_staging")
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    # The event of a stage says that its tasks ran on Spark.
    ran = {stage for stage, detail in ended.items() if detail.get("spark_tasks")}
    print(f"stages with tasks on Spark: {sorted(ran)}")
    assert ran >= {"land", "mirror"}
    # Only Arrow and obstore (tasks) and delta-rs (the driver): nothing of Spark's own asked the store.
    agents = {one.agent.split("/")[0] for one in asked}
    assert agents <= {"aws-sdk-cpp", "azpartner-arrow", "object_store"}, agents
    staged = {one.kind for one in asked if "/_staging/" in one.key}
    assert staged >= {"PUT", "GET"}
    # What tasks put for other tasks is gone.
    assert left == []


def read_history(ctx: StageContext, key: str) -> list[RowVersion]:
    return Audit(ctx.paths, Rules.of(ctx.replication), ctx.windows).read_row_history("d", "t", [key])


def test_windows_in_an_object_store_equal_the_source_and_can_be_verified_and_maintained(
    source: LiveSource, make: Make, mariadb: MariaDb, object_store: ObjectStore
) -> None:  # U-06
    set_up(source.workload)
    some_changes(source.workload, 1)
    ctx = make("equal", at=object_store)
    run(ctx, source)
    source.workload.add_column("d", "t", integer("c", default="7"))
    some_changes(source.workload, 2)
    run(ctx, source)
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    row = source.workload.rows["d", "t"][0]
    history = read_history(ctx, row["id"])
    assert history[-1].after is not None
    assert [one.table for one in maintain(ctx)]
    assert read_history(ctx, row["id"]) == history
    assert verify(ctx.replication).equal
    execute(mariadb, f"DELETE FROM d.t WHERE id = {row['id']}")
    differences = verify(ctx.replication, VerifyOptions(fresh=True)).differences
    assert [(one.table, one.kind) for one in differences] == [("t", "missing")]


def find_manifest(ctx: StageContext) -> str:
    landed = ctx.windows.find_landed_ts()
    (manifest,) = {
        event["manifest"] for event in ctx.windows.read_events(stage="land", sealed=True) if event["hi"] == landed
    }
    return str(manifest)


def add_history(ctx: StageContext, windows: int) -> None:
    """Events of so many windows before the first one, in large files."""
    lo = pa.array(range(-windows, 0), pa.int64())
    same = {Window.SINK: "", Window.STATE: "done", Window.ROWS: 1, Window.SECONDS: 0.1, Window.RUN_ID: "r",
            Window.BLOCKED_BY: "", Window.DETAIL: "{}", Window.MANIFEST: find_manifest(ctx)}  # fmt: skip
    columns = {Window.LO: lo, Window.HI: pc.add(lo, 1), Window.AT_MS: pc.add(lo, windows + 1)}
    columns |= {name: pa.repeat(value, windows) for name, value in same.items()}
    events = [
        pa.table({**columns, Window.STAGE: pa.repeat(stage, windows)})
        for stage in ("land", "merge", "convert", "mirror")
    ]
    place = ctx.paths.locate_table(WINDOW.name)
    groups = WriterProperties(max_row_group_size=WINDOW.group_rows, compression="ZSTD")
    write_deltalake(opentable.open_table(place), pa.concat_tables(events), mode="append", writer_properties=groups)


def add_commits(ctx: StageContext) -> None:
    """Commits without files to each control table, almost as many as are left before the next compaction."""
    for table in (WINDOW, PUMP_MEMBER, SCHEMA_CHANGE, SCHEMA_SNAPSHOT, MIRROR_VERSION):
        known = opentable.open_known(ctx.paths.locate_table(table.name))
        assert isinstance(known, StoreTable)
        while (version := known.commit([], {"operation": "WRITE"})) % COMPACT_EVERY < 42:
            if version % TIDY_EVERY == 0:
                known.write_checkpoint()


def build_old_lake(source: LiveSource, make: Make, name: str, url: str) -> StageContext:
    """A lake with 50,000 windows of history, whose control tables are before their next compaction."""
    set_up(source.workload)
    some_changes(source.workload, 1)
    ctx = make(name, url)
    run(ctx, source)
    add_history(ctx, 50_000)
    add_commits(ctx)
    return ctx


def test_a_window_of_one_transaction_takes_few_requests(
    source: LiveSource, make: Make, mariadb: MariaDb, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:  # 36: the request budget
    """With 50,000 windows of history and control tables before their next compaction: of a process that has seen the
    lake before, and of a new one."""
    with S3Proxy(s3.port) as proxy:
        ctx = build_old_lake(source, make, "requests", proxy.url)

        def count_window(key: int) -> Counter[tuple[str, str, str]]:
            source.workload.begin().insert("d", "t", id=key, u=f"u{key}", v=1).commit()
            source.settle()
            proxy.take_requests()
            run_window(ctx)
            return count_by_table(proxy.take_requests(), f"lakes/{ctx.replication.name}/")

        count_window(1001)
        warm = count_window(1002)
        monkeypatch.setattr(opentable, "_stored", {})
        monkeypatch.setattr(controlrows, "_cached", {})
        monkeypatch.setattr(lease, "_released", {})
        cold = count_window(1003)
        landed_ts = ctx.windows.find_landed_ts()
        assert landed_ts is not None
        proxy.take_requests()
        with look_once():
            rows = Audit(ctx.paths).read_table_as_of("d", "t", landed_ts - 1).rows
        asked = count_by_table(proxy.take_requests(), f"lakes/{ctx.replication.name}/")
    assert len(rows) == len(source.workload.rows["d", "t"])
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    print(f"requests: {warm.total()} warm, {cold.total()} cold, {asked.total()} a table as of a moment")
    print("\n".join(f"{warm[place]:4} {cold[place]:4} {' '.join(place)}" for place in sorted({*warm, *cold})))
    assert warm.total() <= 60
    assert cold.total() <= 170
    # The log of a table that was read before is not read again.
    assert asked.total() <= 40


MOST_OF_PAGE = {
    "/dags/{dag_id}": 41,
    "/dags/{dag_id}/runs/{run_id:path}": 10,
    "/dags/{dag_id}/checkpoints": 10,
    "/dags/{dag_id}/ddl": 6,
    "/dags/{dag_id}/tables": 28,
    "/dags/{dag_id}/row": 35,
    "/dags/{dag_id}/table": 43,
}


@pytest.mark.airflow
def test_a_pages_first_request_takes_few_requests(
    source: LiveSource, make: Make, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:  # 36: the request budget
    """Of a server that has not read the lake before, with 50,000 windows of history."""
    from starlette.datastructures import QueryParams

    from binlake.health.survey import Orchestration
    from binlake_airflow.pages import orchestration
    from binlake_airflow.pages.request import PageRequest
    from binlake_airflow.pages.views import PAGES, answer_of_one_moment

    # Airflow's database has nothing to do with the store.
    monkeypatch.setattr(orchestration, "read_orchestration", lambda _: Orchestration())
    with S3Proxy(s3.port) as proxy:
        ctx = build_old_lake(source, make, "pages", proxy.url)
        some_changes(source.workload, 2)
        run(ctx, source)
        key = source.workload.rows["d", "t"][0]["id"]
        asked = QueryParams({"table": "d.t", "at": str(ctx.windows.find_landed_ts()), "key": str(key)})
        counts = {}
        for path in MOST_OF_PAGE:
            query = PageRequest({"dag_id": "live", "run_id": "x"}, asked, sees_masked=True)
            monkeypatch.setattr(opentable, "_stored", {})
            monkeypatch.setattr(controlrows, "_cached", {})
            monkeypatch.setattr(controlrows, "_found", {})
            proxy.take_requests()
            assert answer_of_one_moment(partial(PAGES[path][1], ctx.replication, query))
            counts[path] = len(proxy.take_requests())
    print(f"requests of a page's first answer: {counts}")
    assert {path: count for path, count in counts.items() if count > MOST_OF_PAGE[path]} == {}


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not can_hide(), reason="this kernel or account allows no mount namespace")
def test_executors_without_the_drivers_files_end_a_window_although_some_are_killed(
    source: LiveSource, make: Make, mariadb: MariaDb, s3: S3, tmp_path: Path
) -> None:  # 36: U-06
    """A master and two workers, which see neither this checkout nor the folder of this test."""
    set_up(source.workload)
    some_changes(source.workload, 1)
    many_bytes(source.workload)
    source.settle()
    with S3Proxy(s3.port) as proxy:
        ctx = make("cluster", proxy.url, engine="spark")
        with SparkCluster(tmp_path / "cluster", CREDENTIALS, hidden=(ROOT, tmp_path)) as cluster:
            text = toml(ctx.replication.model_dump(mode="json", by_alias=True, exclude_none=True))
            ran = run_on_cluster(cluster, text, tmp_path, KILLER)
        print({task: dict(executors) for task, executors in ran.items()})
        executors = {executor for tasks in ran.values() for executor in tasks}
        assert "driver" not in executors
        # Two at first, and another one for each that was killed.
        assert len(executors) > 2
        # One died in each stage that had tasks: after its work, before it could report it.
        assert len(ran) >= 3
        assert set(ran) <= {path.name for path in find_notes(cluster)}
        assert verify(ctx.replication).equal
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    # By Python they have connected to the pumps' data ports alone. The store they reach by Arrow.
    assert read_connected(cluster) == {pump.host for pump in source.registry.list_pumps()}


_COMMITS = r"_delta_log/\d+\.json$"
_TROUBLES = {
    "all kinds": Trouble(slow_down=0.05, fails=0.05, slow=0.05, slow_s=0.2, loses=0.05),
    "slow down": Trouble(slow_down=0.3),
    "fails": Trouble(fails=0.3),
    "slow": Trouble(slow=0.5, slow_s=1),
    "loses puts": Trouble(loses=0.2),
    "loses commits": Trouble(loses=0.5, only=_COMMITS),
    "fails after commits": Trouble(late=0.5, only=_COMMITS),
    "loses leases": Trouble(loses=0.5, only="_locks/"),
}


@pytest.mark.soak  # the short leases may also be lost by a busy machine
@pytest.mark.parametrize("kind", _TROUBLES)
def test_a_store_in_trouble_delays_windows_and_changes_nothing(
    source: LiveSource,
    make: Make,
    mariadb: MariaDb,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """A window succeeds or ends with a transient error, and the next ones bring the same rows."""
    monkeypatch.setattr(lease, "LEASE_S", 2.0)
    monkeypatch.setattr(lease, "RENEW_S", 0.3)
    set_up(source.workload)
    some_changes(source.workload, 5)
    with S3Proxy(object_store.port) as proxy:
        ctx = make(f"trouble-{kind.replace(' ', '-')}", proxy.url, at=object_store)
        run(ctx, source)
        proxy.set_trouble(_TROUBLES[kind])
        ended, failed = 0, Counter[str]()
        for seed in range(2):
            some_changes(source.workload, 6 + seed, 4)
            source.settle()
            try:
                run_window(ctx)
                ended += 1
            except Transient as error:
                failed[error.message[:60]] += 1
        statuses = Counter(one.status for one in proxy.take_requests())
        proxy.set_trouble(Trouble())
        some_changes(source.workload, 9, 4)
        run(ctx, source)
        print(f"{kind}: {ended} windows ended, failed: {dict(failed)}, answers: {dict(statuses)}")
        assert verify(ctx.replication).equal
    assert tables_of(source.workload, mariadb) == expected(source.workload)


@pytest.mark.parametrize(
    ("moment", "kind"),
    [
        ("pulled", "s3"),
        *(pytest.param(one, "s3", marks=pytest.mark.soak) for one in ("planned", "landed", "window_applied")),
        pytest.param("pulled", "azure", marks=pytest.mark.soak),
    ],
)
def test_a_driver_that_was_stopped_for_longer_than_its_lease_loses_and_doubles_nothing(
    source: LiveSource,
    make: Make,
    mariadb: MariaDb,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """It is stopped after this line of its log, while it holds a lock (except for `planned`); another takes it over."""
    monkeypatch.setattr(lease, "LEASE_S", 2.0)
    monkeypatch.setattr(lease, "RENEW_S", 0.3)
    set_up(source.workload)
    some_changes(source.workload, 1)
    ctx = make(f"stopped-{moment.replace('_', '-')}", at=open_store(kind, request))
    source.settle()
    command = [sys.executable, "-m", "support.stopped_driver"]
    env = {**os.environ, "PYTHONPATH": f"{_TESTS}{os.pathsep}{_TESTS.parent}"}
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    assert driver.stdin is not None
    assert driver.stdout is not None
    try:
        driver.stdin.write(ctx.replication.model_dump_json(by_alias=True) + "\n")
        driver.stdin.flush()
        assert next(line for line in driver.stdout if f"] {moment} " in _COLOUR.sub("", line))
        driver.send_signal(signal.SIGSTOP)
        some_changes(source.workload, 2)
        run(ctx, source)
        driver.send_signal(signal.SIGCONT)
        printed, _ = driver.communicate(timeout=120)
    finally:
        driver.kill()
        driver.communicate()
    said = printed.splitlines()[-1]
    print(f"{moment}: {said}")
    if moment == "pulled":
        assert re.match(rf"Transient the lake's lock was taken over by pid {os.getpid()} on ", said)
    some_changes(source.workload, 3)
    run(ctx, source)
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    assert verify(ctx.replication).differences == []


@pytest.mark.soak
def test_a_store_that_stops_answering_in_a_window_is_a_clear_error_and_the_next_run_goes_on(
    source: LiveSource, make: Make, mariadb: MariaDb, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 2.0)
    monkeypatch.setattr(lease, "RENEW_S", 0.3)
    monkeypatch.setattr(access, "_DELTA_RETRIES", {"max_retries": "1", "retry_timeout": "1s"})
    set_up(source.workload)
    some_changes(source.workload, 3)
    with FlakyProxy(s3.port) as proxy:
        ctx = make("cut", proxy.url)
        run(ctx, source)
        some_changes(source.workload, 4)
        source.settle()
        proxy.cut_after(60)
        with pytest.raises(Transient, match=r"store|storage"):
            run_window(ctx)
        proxy.restore()
        run(ctx, source)
    assert tables_of(source.workload, mariadb) == expected(source.workload)
