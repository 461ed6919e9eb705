"""The schema history in the lake: queried for any ts, read by range, never as a whole."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobhistory import in_version_order

from binlake.lake import schemas
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory, StateCache
from binlake.rows.schema import DdlJob, SchemaState
from binlake.rows.schema.state import JobSpool
from binlake.testkit.captures.capture import Capture

BANK = Path(__file__).parent.parent / "captures" / "bank"


def bank_jobs() -> list[tuple[int, DdlJob]]:
    jobs = in_version_order(DdlJob.from_dict(raw) for raw in Capture(BANK).read_jobs())
    return [(job.finished_ts, job) for job in jobs]


def names(state: SchemaState) -> list[tuple[str, int]]:
    return [(f"{table.db}.{table.name}", len(table.columns)) for table in state.list_tables()]


@pytest.mark.long
@pytest.mark.parametrize("every", [1000, 7])
def test_schema_at_any_ts_is_the_fold_of_the_jobs_up_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:  # S0-60 S0-61
    monkeypatch.setattr(schemas, "SNAPSHOT_EVERY", every)
    history, jobs = SchemaHistory(LakePaths(str(tmp_path))), bank_jobs()
    for number, start in enumerate(range(0, len(jobs), 10)):
        part = jobs[start : start + 10]
        if number == 0:
            history.begin(0, SchemaState())
        history.append(part[-1][0], part)
    for ts, _ in jobs[::9]:
        expected = SchemaState().fold(job for job in jobs if job[0] <= ts)
        assert names(history.read_state_at(ts)) == names(expected)
        assert history.read_state_at(ts).version == expected.version
    assert [job.id for _, job in history.read_changes(jobs[3][0], jobs[9][0])] == [job.id for _, job in jobs[4:10]]


def test_rows_appended_twice_by_a_dead_run_change_nothing(tmp_path: Path) -> None:
    history, jobs = SchemaHistory(LakePaths(str(tmp_path))), bank_jobs()
    history.begin(0, SchemaState())
    for _ in range(2):
        history.append(jobs[-1][0], jobs)
    assert names(history.read_state_at(jobs[-1][0])) == names(SchemaState().fold(jobs))
    assert len(history.read_changes(0, jobs[-1][0])) == len(jobs)


@pytest.mark.long
def test_bootstrap_from_shuffled_jobs_answers_for_every_ts_up_to_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # S0-61
    monkeypatch.setattr(schemas, "SNAPSHOT_EVERY", 5)
    monkeypatch.setattr(schemas, "_PART_ROWS", 8)
    raw = list(Capture(BANK).read_jobs())
    jobs = bank_jobs()
    lo = jobs[-4][0]
    random.Random(5).shuffle(raw)
    history = SchemaHistory(LakePaths(str(tmp_path)))
    assert not history.exists()
    at_lo = history.bootstrap(lo, [*raw, *raw[:10]])
    assert history.exists()
    for ts in (0, jobs[2][0], jobs[30][0], jobs[30][0] - 1, jobs[61][0], lo):
        expected = SchemaState().fold(job for job in jobs if job[0] <= ts)
        assert (names(history.read_state_at(ts)), history.read_state_at(ts).version) == (
            names(expected),
            expected.version,
        )
    assert at_lo.version == jobs[-4][1].schema_version
    assert len(history.read_changes(0, lo)) == sum(job.took_effect for _, job in jobs[:-3])


def test_interrupted_bootstrap_is_repeated_from_the_start(tmp_path: Path) -> None:  # S0-61, R-20
    raw, jobs = list(Capture(BANK).read_jobs()), bank_jobs()

    def dying() -> Iterator[dict[str, Any]]:
        yield from raw[:20]
        raise ConnectionError

    history = SchemaHistory(LakePaths(str(tmp_path)))
    with pytest.raises(ConnectionError):
        history.bootstrap(jobs[-1][0], dying())
    history.append(jobs[5][0], jobs[:5])  # the state after a death between two parts
    assert not history.exists()
    history.bootstrap(jobs[-1][0], raw)
    assert names(history.read_state_at(jobs[-1][0])) == names(SchemaState().fold(jobs))
    assert len(history.read_changes(0, jobs[-1][0])) == sum(job.took_effect for _, job in jobs)


def test_jobs_that_finish_in_another_order_than_they_committed_are_ordered_by_version() -> (
    None
):  # tidb-binlog 5.4, 1.14
    # U-11
    raw = [dict(one, binlog=dict(one["binlog"])) for one in list(Capture(BANK).read_jobs())[:4]]
    for number, (version, finished) in enumerate([(1, 10), (2, 90), (3, 40), (4, 50)]):
        raw[number]["binlog"] |= {"SchemaVersion": version, "FinishedTS": finished}
    with JobSpool() as spool:
        assert spool.fill(reversed(raw)) == 4
        assert [(ts, job.schema_version) for ts, job in spool.iterate_jobs()] == [(10, 1), (40, 2), (40, 3), (50, 4)]


def test_state_is_read_once_until_the_next_ddl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, known, read = LakePaths(str(tmp_path)), StateCache(), []
    history, jobs = SchemaHistory(paths), bank_jobs()
    history.append(jobs[9][0], jobs[:10])
    state_at = SchemaHistory.read_state_at
    monkeypatch.setattr(SchemaHistory, "read_state_at", lambda self, ts: (read.append(ts), state_at(self, ts))[1])
    moments = [jobs[9][0], jobs[9][0] + 1, jobs[9][0] + 2]
    assert len({id(known.read_state_at(paths, ts)) for ts in moments}) == 1
    assert read == moments[:1]
    history.append(jobs[19][0], jobs[10:20])
    for ts in (jobs[12][0], jobs[19][0]):
        assert names(known.read_state_at(paths, ts)) == names(history.read_state_at(ts))


_BOOTSTRAP = """
import json, sys
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
sys.path.insert(0, sys.argv[1])
from support.jobhistory import endless_jobs
count = int(sys.argv[3])
history = SchemaHistory(LakePaths(sys.argv[2]))
state = history.bootstrap(10 * count, endless_jobs(count))
assert state.version == count, state.version
half = history.read_state_at(5 * count)
assert half.version == count // 2, half.version
assert len(history.read_state_at(10 * count).list_tables()) == len(state.list_tables())
# Not ru_maxrss: that starts with the memory of whoever forked this process.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)
"""


def bootstrap_peak_mib(folder: Path, count: int) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", _BOOTSTRAP, str(Path(__file__).parents[1]), str(folder / "lake"), str(count)],
        capture_output=True, text=True, check=False, timeout=3600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


@pytest.mark.soak
@pytest.mark.long
def test_long_history_needs_little_memory(tmp_path: Path) -> None:  # S0-60, S0-61, U-04
    # The libraries take what the machine offers, 80 MiB more for many jobs; holding all jobs would need another 50 MiB.
    libraries = bootstrap_peak_mib(tmp_path / "few", 1_000)
    assert bootstrap_peak_mib(tmp_path / "many", 30_000) < libraries + 105


@pytest.mark.soak
def test_history_of_100000_jobs_needs_little_memory(tmp_path: Path) -> None:  # U-04
    assert bootstrap_peak_mib(tmp_path, 100_000) < 400
