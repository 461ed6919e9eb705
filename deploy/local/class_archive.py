"""Writes an archive of the classes that Spark loads: `python -m deploy.local.class_archive FILE`.

A JVM writes it at exit, with the classes it has loaded; this one first runs queries like those of a window.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext

from binlake.common.installation import SHORT_LIVED
from binlake.spark_jobs.engine.spark import start_classic_session
from deploy.local.spark_connect import run_sample_queries


def main(archive: Path) -> None:
    """Return when the JVM has written `archive` and ended."""
    # Otherwise the JVM logs a line for each class that it cannot archive.
    java = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with tempfile.TemporaryDirectory(prefix="binlake-classes-") as scratch:
        conf = {"spark.driver.extraJavaOptions": java, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
        spark = start_classic_session("classes", "local[2]", conf)
        gateway = SparkContext._gateway
        assert gateway is not None
        run_sample_queries(spark, f"{scratch}/table")
        spark.stop()
        gateway.shutdown()
        # PySpark's JVM ends when its input is closed.
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
