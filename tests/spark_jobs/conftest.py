"""One local Spark session with Delta for the tests of the Spark shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pyspark.sql import SparkSession

from spark_jobs.session import classic_session

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(autouse=True)
def _logs_of_each_test() -> Iterator[None]:
    """The dispatcher sends logs to the stderr of its time, which pytest closes behind the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A warm session on two cores; tables are in the folders of each test."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    conf = {"spark.sql.warehouse.dir": str(warehouse), "spark.driver.memory": "1g"}
    session = classic_session("tests", "local[2]", conf)
    yield session
    session.stop()
