"""The pump client is a package that any writer can embed (S0-26)."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def test_import_loads_neither_airflow_nor_spark() -> None:
    program = (
        "import binlake.cluster.pumpclient, sys; sys.exit(bool({'airflow', 'pyspark', 'grpc'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=300, check=False).returncode == 0
