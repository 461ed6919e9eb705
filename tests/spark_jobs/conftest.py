"""The Spark shell's tests find their helpers beside them; the Spark session is that of all rooms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mirrored import Mirrored
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def mirrored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mirrored:
    """Three windows with DDL, merged and mirrored. Tests read it; who changes a lake takes a copy."""
    from mirrored import Mirrored

    return Mirrored(spark, tmp_path_factory.mktemp("lake"))
