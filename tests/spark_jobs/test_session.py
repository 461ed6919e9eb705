"""A session's JVM: what it is started with."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deploy.setup import classes

pytestmark = pytest.mark.spark


def test_the_jvm_maps_the_archive_of_its_classes(spark: SparkSession) -> None:
    # What does not fit (other jars, another JVM) is ignored in silence, and each start takes twice the CPU.
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    assert classes.ARCHIVE.is_file(), "run `make setup-tests`"
    assert str(classes.ARCHIVE) in Path(f"/proc/{pid}/maps").read_text()
