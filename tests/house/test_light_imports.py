"""Binlake's programs load no pandas for Arrow, no rich for logs, no click for HTTP; programs that need them get them.

No program loads what only another program needs; its garbage collector runs rarely, and not at the end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.replication_files import write_replication

from binlake.common.startup import THRESHOLDS, import_lightly

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
_FIRST = "from binlake.common.startup import import_lightly; import_lightly()\n"
_LATER = """
import sys
import pyarrow as pa
assert not any(getattr(one, "package", "") == "pyarrow" for one in sys.meta_path), sys.meta_path
assert "_HidingFinder" not in [type(one).__name__ for one in sys.meta_path], sys.meta_path
table = pa.table({"n": pa.array([1, None])})
assert "pandas" not in sys.modules
frame = table.to_pandas()
assert frame["n"].isna().tolist() == [False, True]
import pandas
assert pa.Table.from_pandas(pandas.DataFrame({"x": [1.5, None]})).to_pydict() == {"x": [1.5, None]}
print("well", *sys.argv[1:])
"""


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_arrow_takes_lists_without_pandas_and_gives_frames_with_it() -> None:
    first = "from binlake.common.startup import import_lightly as do; do()\n"
    assert run("-c", first + _LATER) == "well\n"


def test_module_runs_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asked.py").write_text(f"assert __name__ == '__main__'\n{_LATER}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run("-m", "binlake.common.program", "asked", "--one", "two") == "well --one two\n"


_POOL = "import pyarrow as pa; print(pa.default_memory_pool().backend_name)"


@pytest.mark.parametrize(("named", "used"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_arrow_takes_memory_of_the_c_library(
    named: str | None, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked.py").write_text(_POOL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    if named is not None:
        monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", named)
    assert run("-m", "binlake.common.program", "asked") == f"{used}\n"
    worker = "from binlake.spark_jobs.engine.pyworkers import load_before_fork; load_before_fork()\n"
    assert run("-c", worker + _POOL) == f"{used}\n"


def test_process_with_loaded_modules_is_left_unchanged() -> None:
    import httpx
    import pyarrow as pa
    import structlog

    assert {structlog.__name__, httpx.__name__} < set(sys.modules)

    assert pa.array([1]).to_pylist() == [1]
    before = list(sys.meta_path)
    import_lightly()
    assert sys.meta_path == before


_PUMP = """
import sys
import binlake.pump_service.pump.command
assert not [name for name in sys.modules if name.startswith(("binlake.config", "pymysql", "cryptography"))]
import binlake.cluster.source.regions
from binlake.config import load_replication
assert not [name for name in sys.modules if name.startswith(("pymysql", "cryptography"))]
"""
_CONFIGURATION = """
import sys
from binlake.config import load_replication
assert "numpy" not in sys.modules
"""

_READ = """
import sys
from binlake.config import load_replication
for file in sys.argv[1:]:
    load_replication(file)
    print("croniter" in sys.modules)
"""


def test_only_other_cron_expressions_load_their_parser(tmp_path: Path) -> None:
    # One program, because each takes a second: what is loaded stays loaded, so the one that loads it is the last.
    schedules = (None, "every 5s", "@continuous", "@hourly", "*/59 * * * *", "5 * * * *")
    sections = (None if schedule is None else f'schedule = "{schedule}"' for schedule in schedules)
    files = [write_replication(tmp_path, f"r{n}", target=None, airflow=one) for n, one in enumerate(sections)]
    assert run("-c", _READ, *map(str, files)).split() == ["False"] * 5 + ["True"]


@pytest.mark.parametrize("program", [_PUMP, _CONFIGURATION], ids=["a pump", "a configuration"])
def test_program_does_not_load_modules_of_other_programs(program: str) -> None:
    run("-c", program)


_SHOW = "import atexit, gc; atexit.register(lambda: print('thresholds', gc.get_threshold(), flush=True))\n"


def test_command_collects_garbage_rarely() -> None:
    assert f"thresholds {THRESHOLDS}" in run("-c", f"{_SHOW}from binlake.cli import main; main()", "--help")


def test_stage_collects_garbage_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shown.py").write_text(_SHOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run("-m", "binlake.common.program", "shown") == f"thresholds {THRESHOLDS}\n"


_CYCLE = """
import atexit, gc
class Kept:
    def __del__(self):
        print("collected", flush=True)
def make():
    kept = Kept()
    kept.itself = kept
    return kept
kept = make()
atexit.register(lambda: print("still collects", make() and gc.collect() > 0, flush=True))
"""


def test_program_collects_nothing_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cyclic.py").write_text(_CYCLE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run("-m", "cyclic") == "collected\nstill collects True\ncollected\n"
    assert run("-m", "binlake.common.program", "cyclic") == "collected\nstill collects True\n"
