"""What every room's tests share: the repository on the path, real servers as fixtures, and the order of the run."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from support import selection, servers
from support.bytecode import keep_bytecode
from support.examples import draw_share, examples
from support.leftovers import leftovers, mark_session
from support.memory_disk import keep_temporary_files_in_memory
from support.shared_servers import drop_databases, shared

from binlake.common.installation import SHORT_LIVED
from binlake.common.startup import collect_rarely
from deploy.local.process import Child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.certificates import Authority
    from support.mariadb import MariaDb, MySql
    from support.objectstores import ObjectStore
    from support.securedkafka import SecuredKafka
    from support.shop import Shop

    from deploy.local.apicurio import Apicurio
    from deploy.local.azurite import Azurite
    from deploy.local.s3 import S3

# Verifying the bytecode of some 15,000 classes takes a tenth of each start.
_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
# All of Spark's tests fill the 48 MB that a JVM without the optimising compiler reserves for compiled code. Then it
# searches the code for what to delete, and compiles that again.
_ROOM_FOR_CODE = "-XX:ReservedCodeCacheSize=240m -XX:-UseCodeCacheFlushing"
# Generating and compiling a class for each query over a few rows takes a sixth of the CPU of Spark's tests. Tests that
# start Spark as it is deployed (demo, submitted jobs, cluster, Connect server) leave it on.
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_QUICK_CPU_S = 10.0
"""CPU limit of a quick test, generous for a busy machine; tests of more than half a second have the mark `long`."""
_QUICK_SHARE = 5
_END_S = 120.0
_CONNECT_MODE = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")


def pytest_configure(config: pytest.Config) -> None:
    """Stop all servers on SIGTERM as on Ctrl-C, and give JVMs and files what suits a life of minutes."""
    keep_bytecode()
    if config.option.markexpr == "not soak":  # the long tests of `make soak` write more than memory should hold
        keep_temporary_files_in_memory()
    _write_plain_tracebacks()
    draw_share(_QUICK_SHARE if config.option.quick else config.option.draw_one_of)
    _set_up_hypothesis()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("JDK_JAVA_OPTIONS", f"{SHORT_LIVED} {_UNVERIFIED} {_ROOM_FOR_CODE}")


def _set_up_hypothesis() -> None:
    # Imported here because every process would compile what it imports before `keep_bytecode`, which takes a second.
    from hypothesis import HealthCheck, settings

    # The duration of an example only shows how busy the machine is.
    lenient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("binlake", lenient, max_examples=examples(lenient.max_examples))
    settings.load_profile("binlake")


def _write_plain_tracebacks() -> None:
    """Replace structlog's default with sources and variables, which takes most of a second an exception."""
    for step in structlog.get_config()["processors"]:
        if isinstance(step, structlog.dev.ConsoleRenderer):
            step.exception_formatter = structlog.dev.plain_traceback


def pytest_sessionfinish(session: pytest.Session) -> None:
    """If the process does not end after the last test, for example because of a thread, show why and end it."""
    # A worker waits for the other workers; the controller ends it.
    if not hasattr(session.config, "workerinput"):
        faulthandler.dump_traceback_later(_END_S, exit=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests that need no server (make test-quick)")
    parser.addoption("--draw-one-of", type=int, default=1, metavar="N", help="draw one of N examples (make test: 6)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files in a quick run if all their tests need a server."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if config.option.quick and is_test and selection.is_costly_as_a_whole(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from imported objects, which stay: searching them takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        collect_rarely()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by what they need, deselect the expensive ones in a quick run, and sort."""
    selection.mark_by_fixtures(items)
    servers.leave_other_server_to_soak(items)
    if config.option.quick:
        config.hook.pytest_deselected(items=[item for item in items if selection.cost(item)])
        items[:] = [item for item in items if not selection.cost(item)]
    if hasattr(config, "workerinput"):
        from support.sharing import longest_first

        longest_first(items)
    else:
        selection.cheapest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Distribute tests over processes by the resources that they need."""
    from support.sharing import scheduler

    return scheduler(config, log)


@pytest.fixture(autouse=True)
def _require_quick_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test of a quick run that starts a server or computes for long: it lacks a mark."""
    if not request.config.option.quick:
        yield
        return

    def refuse(child: Child) -> Child:
        raise AssertionError(f"{request.node.nodeid} starts {child.name}: mark it `process`")

    monkeypatch.setattr(Child, "start", refuse)
    began = time.process_time()
    yield
    assert time.process_time() - began < _QUICK_CPU_S, f"mark {request.node.nodeid} `long`"


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the session if a process that a test started outlives it."""
    mark_session()
    yield
    assert leftovers() == []


@pytest.fixture(scope="session", autouse=True)
def _exact_json() -> Iterator[None]:
    """R-46: no stage or command of any test reports or stores a number that a browser would round."""
    from support.exact import find_rounded_numbers

    from binlake.lake.windowlog import WindowEvent, WindowLog
    from binlake.spark_jobs.job.results import StageResult

    to_dict, record = StageResult.to_dict, WindowLog.record

    def check_result(result: StageResult) -> dict[str, Any]:
        values = to_dict(result)
        assert find_rounded_numbers(values) == []
        return values

    def check_event(log: WindowLog, event: WindowEvent) -> None:
        assert find_rounded_numbers(dict(event.detail)) == []
        record(log, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageResult, "to_dict", check_result)
        patch.setattr(WindowLog, "record", check_event)
        yield


@pytest.fixture(autouse=True)
def _logs_of_each_test() -> Iterator[None]:
    """Reset structlog, which would keep writing to the stderr of a test that pytest has closed."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module", autouse=True)
def _shared_servers_are_empty() -> Iterator[None]:
    """Drop the databases that a module leaves on servers of the session, which the next module would find."""
    yield
    drop_databases()


@pytest.fixture(scope="module", autouse=True)
def _classic_again() -> Iterator[None]:
    """Leave Connect mode, which a client of a Connect server sets for its whole process, before the next module."""
    yield
    for name in _CONNECT_MODE:
        os.environ.pop(name, None)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for Unix sockets. Their paths may have 107 bytes, and pytest's own folders can be too long for that."""
    with tempfile.TemporaryDirectory(prefix="bl-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """A running MariaDB of this test session; each test creates and drops its own databases."""
    from support.mariadb import mariadb_in_memory

    with mariadb_in_memory() as made, shared(made) as server:
        yield server


@pytest.fixture
def empty_mariadb(mariadb: MariaDb) -> MariaDb:
    """The session's MariaDB without the databases of earlier tests."""
    mariadb.wipe()
    return mariadb


@pytest.fixture(scope="session")
def second_mariadb() -> Iterator[MariaDb]:
    """Another server: a source that answers SQL, or a second target."""
    from support.mariadb import mariadb_in_memory

    with mariadb_in_memory() as made, shared(made) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_source() -> Iterator[MariaDb]:
    """A running MariaDB that writes row binlogs; each test creates and drops its own databases and purges no log."""
    from support.mariadb import MariaDb, mariadb_in_memory

    with mariadb_in_memory(MariaDb.list_source_options()) as made, shared(made) as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySql]:
    """A running MySQL that writes row binlogs with GTIDs, with the rules of `mariadb_source`."""
    from support.mariadb import MySql, mysql_in_memory

    with mysql_in_memory(MySql.list_source_options(2)) as made, shared(made) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_target() -> Iterator[MySql]:
    """A running MySQL for tests of targets, which wipe it."""
    from support.mariadb import mysql_in_memory

    # TLS takes 4 ms of CPU a connection, and they make thousands.
    with mysql_in_memory(("--tls-version=",)) as made, shared(made) as server:
        yield server


@pytest.fixture(scope="session")
def first_shop(mariadb: MariaDb, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop whose first window is in a lake; made once, and tests work on copies."""
    from support.shop import Shop

    return Shop(tmp_path_factory.mktemp("shop"), mariadb)


@pytest.fixture
def shop(first_shop: Shop, tmp_path: Path) -> Shop:
    """A copy of the shop for one test, with its target at the end of the lake."""
    return first_shop.copy(tmp_path)


@pytest.fixture(scope="session")
def etcd_url() -> Iterator[str]:
    """`http://host:port` of a real etcd, empty at first."""
    from deploy.local.etcd import Etcd

    with Etcd() as server:
        yield server.url


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates of servers and clients."""
    from support.certificates import Authority

    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def kafka(authority: Authority) -> Iterator[SecuredKafka]:
    """A real Kafka of one broker; its usual port has no security."""
    from support.securedkafka import SecuredKafka

    with SecuredKafka(authority) as server:
        yield server


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[Apicurio]:
    """A real schema registry, empty at first, with the policy BACKWARD."""
    from deploy.local.apicurio import Apicurio

    with Apicurio() as server:
        server.set_compatibility("BACKWARD")
        yield server


@pytest.fixture(scope="session", params=["s3", "azure"])
def object_store(request: pytest.FixtureRequest) -> ObjectStore:
    """A store of each kind that can have a lake."""
    from support.objectstores import describe_azurite, describe_s3

    if request.param == "s3":
        return describe_s3(request.getfixturevalue("s3"))
    return describe_azurite(request.getfixturevalue("azurite"))


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """An account of Azure's storage, empty at first."""
    from deploy.local.azurite import Azurite

    with Azurite() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """A server that speaks S3, empty at first."""
    from deploy.local.s3 import S3

    with S3() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A warm classic session with Delta on two cores; tables are in the folders of each test."""
    from binlake.spark_jobs.engine.spark import start_classic_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    conf = {"spark.sql.warehouse.dir": str(warehouse), "spark.driver.memory": "1g", **_INTERPRETED}
    session = start_classic_session("tests", "local[2]", conf)
    yield session
    session.stop()
