"""What executors get as an archive is enough for a task on a machine without this checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pyspark
import pytest
from pyspark.cloudpickle import dumps

from binlake.cli import run as main
from binlake.errors import ConfigError
from binlake.spark_jobs.commands import sparkpackage
from binlake.spark_jobs.commands.sparkpackage import build_package_conf, build_package_env, list_files, write_package
from binlake.spark_jobs.engine.spark import _Work
from deploy.local.spark_connect import build_environment, build_server_command

ROOT = Path(__file__).resolve().parents[2]
_NAMES = ("a.py", "b.py", "c.py")
# As Spark's worker calls it; then what the tasks of all stages import.
_PROGRAM = """
import pickle, sys, pyarrow
work = pickle.load(sys.stdin.buffer)
[batch] = work(iter([pyarrow.RecordBatch.from_pydict({"id": [0]})]))
import binlake.spark_jobs.engine.pyworkers, binlake.spark_jobs.land.pulling, binlake.spark_jobs.stages.merge
import binlake.spark_jobs.stages.compact, binlake.spark_jobs.stages.convert, binlake.spark_jobs.stages.mirror
import binlake.spark_jobs.stages.encode
from importlib.metadata import entry_points
assert [point.load() for point in entry_points(group="binlake.protocols")]
print(pickle.loads(batch.column("result")[0].as_py()))
print(*sorted({getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}), sep="\\n")
"""


@pytest.mark.long
def test_a_task_runs_with_the_archive_a_python_and_spark_alone(tmp_path: Path) -> None:  # 36
    write_package(tmp_path / "own.tar")
    with tarfile.open(tmp_path / "own.tar") as archive:
        archive.extractall(tmp_path / "unpacked")
    spark = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
    path = ":".join(map(str, [tmp_path / "unpacked", *spark]))
    python = Path(sys.base_prefix) / "bin" / sparkpackage.PYTHON
    done = subprocess.run(
        ["env", "-i", f"PYTHONPATH={path}", python, "-c", _PROGRAM],
        input=dumps(_Work(abs, (-7,), ())), cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    result, *files = done.stdout.decode().splitlines()
    assert result == "7"
    assert [file for file in files if file.startswith(f"{ROOT}/") and "/pyspark/python/lib/" not in file] == []
    assert f"{tmp_path}/unpacked/binlake/spark_jobs/engine/spark.py" in files


def test_the_archive_has_no_headers_tests_or_other_rooms() -> None:
    names = list_files()
    assert "pyarrow/__init__.py" in names
    # An extra of a requirement of the extra.
    assert "cryptography/__init__.py" in names
    assert not [name for name in names if "/tests/" in name or name.endswith(".h") or name.startswith("..")]
    assert not {"airflow", "pyspark", "pandas"} & {name.partition("/")[0] for name in names}


def test_links_are_stored_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, again = tmp_path / "link.py", tmp_path / "again.py"
    link.symlink_to(__file__)
    again.hardlink_to(link)
    monkeypatch.setattr(sparkpackage, "list_files", lambda: {"a.py": link, "b.py": again, "c.py": Path(__file__)})
    write_package(tmp_path / "own.tar.gz")
    with tarfile.open(tmp_path / "own.tar.gz") as archive:
        assert [(entry.name, entry.type) for entry in archive] == [(name, tarfile.REGTYPE) for name in _NAMES]


def test_an_archive_that_spark_would_not_unpack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no name of a Spark archive"):
        write_package(tmp_path / "own.whl")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_writing_leaves_the_former_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.tar"
    file.write_bytes(b"former")
    monkeypatch.setattr(sparkpackage, "list_files", lambda: {"a": tmp_path / "missing"})
    with pytest.raises(FileNotFoundError):
        write_package(file)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("own.tar", b"former")]


def test_the_command_prints_the_settings_that_name_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sparkpackage, "list_files", lambda: {"a.py": Path(__file__)})
    file = tmp_path / "own.tar"
    assert main(["spark", "package", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"{file}#binlake-python\n" in said
    assert f"PYSPARK_PYTHON={sparkpackage.PYTHON}\n" in said
    assert main(["spark", "package", str(file), "--url", "https://x.example/own.tar", "--output", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["conf"] == build_package_conf("https://x.example/own.tar")
    assert printed["conf"]["spark.archives"] == "https://x.example/own.tar#binlake-python"
    assert printed["env"] == build_package_env()


@pytest.mark.parametrize(("master", "pinned"), [("local[2]", True), ("spark://one:7077", False), ("yarn", False)])
def test_only_a_server_without_a_cluster_listens_on_loopback_alone(tmp_path: Path, master: str, pinned: bool) -> None:
    command = build_server_command(tmp_path, 1, master=master, memory="1g")
    own = {word.partition("=")[0] for word in command} & {"spark.driver.host", "spark.driver.bindAddress"}
    assert bool(own) == ("SPARK_LOCAL_IP" in build_environment(master)) == pinned
