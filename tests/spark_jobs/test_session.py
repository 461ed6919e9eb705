"""A session's JVM starts with the archive of Spark's classes that `python -m deploy.setup.classes` writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from binlake.common import installation

pytestmark = [pytest.mark.spark, pytest.mark.soak]

_SHOW_MAPPED = """
from pathlib import Path
from binlake.spark_jobs.engine.spark import start_classic_session
spark = start_classic_session("archived", "local[1]")
pid = spark._jvm.java.lang.ProcessHandle.current().pid()
print(Path(f"/proc/{pid}/maps").read_text())
spark.stop()
"""


def test_jvm_uses_the_class_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An archive that does not match (other jars, another JVM) is ignored silently, and each start takes twice the CPU.
    for jar in installation.list_delta_jars():
        (tmp_path / Path(jar).name).symlink_to(jar)
    monkeypatch.setenv(installation.JARS_ENV, str(tmp_path))
    archive = tmp_path / installation.ARCHIVE
    # The JVM that writes an archive must not use one.
    subprocess.run([sys.executable, "-m", "deploy.local.class_archive", str(archive)], env=_env(), check=True)
    shown = subprocess.run([sys.executable, "-c", _SHOW_MAPPED], env=_env(), check=True, capture_output=True, text=True)
    assert str(archive) in shown.stdout


def _env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
