"""The Spark shell's tests import helper modules of their own folder and share the session's Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import servers

if TYPE_CHECKING:
    from fed import Fed, Make
    from mirrored import Mirrored
    from pyspark.sql import SparkSession
    from sqlsink import LandedShop
    from support.workload import Workload

    from deploy.local.apicurio import Apicurio
    from deploy.local.kafka import KafkaBroker


pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server


@pytest.fixture(scope="session")
def mirrored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mirrored:
    """Three windows with DDL, merged and mirrored. Tests only read it; a test that changes a lake copies it first."""
    from mirrored import Mirrored

    return Mirrored(spark, tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="session")
def landed_shop(tmp_path_factory: pytest.TempPathFactory) -> LandedShop:
    """Land each number of windows only once."""
    from sqlsink import land_shop

    root = tmp_path_factory.mktemp("landed")

    def landed(windows: int) -> Path:
        if not (root / str(windows)).exists():
            land_shop(root / str(windows), windows)
        return root / str(windows)

    return landed


@pytest.fixture
def make(tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio) -> Make:
    """Make a lake of a workload with a feed; the registry's compatibility is set to BACKWARD."""
    from fed import Fed

    def make(workload: Workload, **feed: Any) -> Fed:
        schema_registry.set_compatibility("BACKWARD")
        return Fed(tmp_path / "lake", workload, kafka, schema_registry, **feed)

    return make
