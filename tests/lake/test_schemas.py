"""The schema history in the lake: asked for any ts, read by range, never whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from binlake.capture import Capture
from binlake.lake import schemas
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.schema import DdlJob, SchemaState, in_version_order

BANK = Path(__file__).parent.parent / "captures" / "bank"


def bank_jobs() -> list[tuple[int, DdlJob]]:
    jobs = in_version_order(DdlJob.from_dict(raw) for raw in Capture(BANK).jobs())
    return [(job.finished_ts, job) for job in jobs]


def names(state: SchemaState) -> list[tuple[str, int]]:
    return [(f"{table.db}.{table.name}", len(table.columns)) for table in state.tables()]


@pytest.mark.parametrize("every", [1000, 7])
def test_the_schema_at_any_ts_is_the_fold_of_the_jobs_up_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:  # S0-60 S0-61
    monkeypatch.setattr(schemas, "SNAPSHOT_EVERY", every)
    history, jobs = SchemaHistory(LakePaths(str(tmp_path))), bank_jobs()
    lo = 0
    for number, start in enumerate(range(0, len(jobs), 10)):
        part = jobs[start : start + 10]
        history.append(lo, part[-1][0], SchemaState() if number == 0 else None, part)
        lo = part[-1][0]
    for ts, _ in jobs[::9]:
        expected = SchemaState().fold(job for job in jobs if job[0] <= ts)
        assert names(history.state_at(ts)) == names(expected)
        assert history.state_at(ts).version == expected.version
    assert [job.id for _, job in history.changes(jobs[3][0], jobs[9][0])] == [job.id for _, job in jobs[4:10]]


def test_what_a_dead_attempt_appended_twice_changes_nothing(tmp_path: Path) -> None:
    history, jobs = SchemaHistory(LakePaths(str(tmp_path))), bank_jobs()
    for _ in range(2):
        history.append(0, jobs[-1][0], SchemaState(), jobs)
    assert names(history.state_at(jobs[-1][0])) == names(SchemaState().fold(jobs))
    assert len(history.changes(0, jobs[-1][0])) == len(jobs)


_HUGE = """
import json, sys
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.schema import DdlJob, SchemaState
template, path = json.loads(open(sys.argv[1]).read()), sys.argv[2]
history = SchemaHistory(LakePaths(path))
def job(n):
    template["id"] = n
    template["binlog"]["SchemaVersion"] = n + 1000
    template["binlog"]["FinishedTS"] = n
    return n, DdlJob.from_dict(template)
for start in range(1, 100_001, 5000):
    jobs = [job(n) for n in range(start, start + 5000)]
    history.append(start - 1, start + 4999, SchemaState() if start == 1 else None, jobs)
state = SchemaHistory(LakePaths(path)).state_at(100_000)
assert state.version == 101_000, state.version
# Not ru_maxrss: that starts with the memory of whoever forked this process.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)
"""


def test_a_history_of_100000_jobs_costs_little_memory(tmp_path: Path) -> None:  # S0-60
    template = next(raw for raw in Capture(BANK).jobs() if raw["type"] == 1)
    (tmp_path / "job.json").write_text(json.dumps(template))
    ran = subprocess.run(
        [sys.executable, "-c", _HUGE, str(tmp_path / "job.json"), str(tmp_path / "lake")],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 500
