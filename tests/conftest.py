"""What every room's tests share: the repository on the path, real servers as fixtures, and the order of the run."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

# `deploy` is not an installed package: tests and demo run it from the checkout.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.leftovers import leftovers, mark_session
from support.mariadb import MariaDb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.shop import Shop

# Quick tests first: a slow one is no news when a quick one has failed already.
_ORDER = ("mariadb", "spark", "airflow", "e2e")
_END_S = 120.0
# How long an example takes tells how busy the machine is, and nothing else.
settings.register_profile("binlake", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("binlake")
_CONNECT_MODE = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")


def pytest_configure() -> None:
    """A run that is told to end takes its servers down first, as at Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What hangs behind the last test (a thread that a failed one left, say) is shown and ends the run."""
    # One of several processes that share a run waits for the others; who shares it out ends it.
    if not hasattr(session.config, "workerinput"):
        faulthandler.dump_traceback_later(_END_S, exit=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests, then by what is needed: MariaDB, Spark, Airflow, all of it."""
    items.sort(
        key=lambda item: max((1 + n for n, mark in enumerate(_ORDER) if item.get_closest_marker(mark)), default=0)
    )


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fails the session when a process that a test started outlives it."""
    mark_session()
    yield
    assert leftovers() == []


@pytest.fixture(scope="session", autouse=True)
def _exact_json() -> Iterator[None]:
    """R-46: no stage or command of any test tells, or leaves in the lake, a number that a browser would round."""
    from support.exact import rounded

    from binlake.lake.windowlog import WindowEvent, WindowLog
    from spark_jobs.results import StageResult

    tell, record = StageResult.to_dict, WindowLog.record

    def told(result: StageResult) -> dict[str, Any]:
        shown = tell(result)
        assert rounded(shown) == []
        return shown

    def recorded(log: WindowLog, event: WindowEvent) -> None:
        assert rounded(dict(event.detail)) == []
        record(log, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageResult, "to_dict", told)
        patch.setattr(WindowLog, "record", recorded)
        yield


@pytest.fixture(autouse=True)
def _logs_of_each_test() -> Iterator[None]:
    """The dispatcher sends logs to the stderr of its time, which pytest closes behind the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module", autouse=True)
def _classic_again() -> Iterator[None]:
    """A client of a Connect server leaves its whole process in that mode: the next module's Spark is a classic one."""
    yield
    for name in _CONNECT_MODE:
        os.environ.pop(name, None)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for Unix sockets, whose path may have 107 bytes: pytest's own folders may leave no room for a name."""
    with tempfile.TemporaryDirectory(prefix="bl-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """A running MariaDB of this test session; tests make and drop databases of their own."""
    with MariaDb() as server:
        yield server


@pytest.fixture
def empty_mariadb(mariadb: MariaDb) -> MariaDb:
    """The session's MariaDB without any database of a test before."""
    mariadb.wipe()
    return mariadb


@pytest.fixture(scope="session")
def second_mariadb() -> Iterator[MariaDb]:
    """Another server: a source that answers SQL, or a second target."""
    with MariaDb() as server:
        yield server


@pytest.fixture(scope="session")
def first_shop(mariadb: MariaDb, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop whose first window is in a lake; made once, tests work on copies."""
    from support.shop import Shop

    return Shop(tmp_path_factory.mktemp("shop"), mariadb)


@pytest.fixture
def shop(first_shop: Shop, tmp_path: Path) -> Shop:
    """A shop of the test's own, its target at the lake's end."""
    return first_shop.copy(tmp_path)


@pytest.fixture(scope="session")
def etcd_url() -> Iterator[str]:
    """`http://host:port` of a real etcd, empty at first."""
    from deploy.local.etcd import Etcd

    with Etcd() as server:
        yield server.url


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A warm classic session with Delta on two cores; tables are in the folders of each test."""
    from spark_jobs.session import classic_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = classic_session(
        "tests", "local[2]", {"spark.sql.warehouse.dir": str(warehouse), "spark.driver.memory": "1g"}
    )
    yield session
    session.stop()
