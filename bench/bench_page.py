"""`make bench-page`: cost of each page request on a lake of 10,000 windows and MUTATIONS row changes (10 million).

Prints wall-clock milliseconds and CPU milliseconds of Airflow's API server, with a login. The first request of each
kind is printed separately. The lake has the layout that `binlake maintain` produces. It is built once in
BINLAKE_BENCH_DIR (default: the folder for temporary files), and later runs reuse it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import psutil
import pyarrow as pa
from bench_control import STAGES
from history_load import (
    BASE,
    FIRST_KEY,
    KEYS,
    SPAN_MS,
    TABLES,
    build_binlogs,
    build_mutations,
    compute_step,
    cut_by_day,
)

from binlake.lake.control import ControlTable
from binlake.lake.controltables import WINDOW
from binlake.lake.mutations import RowVersion, read_changes
from binlake.lake.parts import TablePart
from binlake.lake.paths import LakePaths
from binlake.lake.tables import BINLOG, MUTATION, LakeTable
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.mirror import MirrorState, MirrorVersions
from binlake.mirror.replica import Replica
from binlake.mirror.rows import build_typed_rows
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.spark_jobs.commands.maintain import write_clustered
from binlake.spark_jobs.job.lake import commit_parts, ensure_tables
from binlake.window.manifest import MemberProof, WindowManifest
from deploy.local.airflow import Airflow
from deploy.local.airflow_client import AirflowClient
from deploy.local.sample_lake import SampleLake, build_table

WINDOWS = 10_000
STEP = (SPAN_MS << 18) // WINDOWS
_BATCH = 1000
_ROWS_OF_A_FILE = 500_000
"""About maintenance's 32 MiB a file of `mutation`."""
_MADE = "made"
ROUNDS = 7


def make(mutations: int, folder: Path) -> None:
    """Build the lake, unless an earlier run left one of the same size."""
    mark = folder / _MADE
    if mark.exists() and mark.read_text() == str(mutations):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = LakePaths(str(folder / "lake" / "bench"))
    for name, step in _list_parts(mutations, paths).items():
        began = time.perf_counter()
        step()
        print(f"made {name}: {time.perf_counter() - began:.0f} s", flush=True)
    mark.write_text(str(mutations))


def _list_parts(mutations: int, paths: LakePaths) -> dict[str, Callable[[], None]]:
    tables = [_build_table(number) for number in range(TABLES)]
    return {
        "definitions": lambda: SampleLake(paths, "sbtest").begin(BASE - 1, *tables),
        "windows": lambda: _write_windows(paths),
        "mirror": lambda: _write_mirror(paths, tables[0]),
        "row changes": lambda: _write_history(mutations, paths),
    }


def _build_table(number: int) -> TableDef:
    columns = {"id": t.LONGLONG, "k": t.VARCHAR, "c": t.VARCHAR, "pad": t.VARCHAR}
    return build_table(f"sbtest{number}", 100 + number, columns, ["id"], "sbtest")


def _write_windows(paths: LakePaths) -> None:
    table, versions = ControlTable(paths.locate_table("window"), WINDOW), MirrorVersions(paths)
    for first in range(0, WINDOWS, _BATCH):
        numbers = range(first, first + _BATCH)
        for stage in (*STAGES, "mirror"):
            table.append([_build_event(number, stage) for number in numbers])
        versions.record(
            [
                MirrorState("sbtest", f"sbtest{table_number}", 1, *_compute_bounds(number))
                for number in numbers
                for table_number in range(TABLES)
            ]
        )
    log = WindowLog(paths)
    log.record(
        WindowEvent("plan", *_compute_bounds(WINDOWS), "blocked", blocked_by="pump-2", detail={"reason": "it is slow"})
    )
    log.tidy()


def _compute_bounds(number: int) -> tuple[int, int]:
    return BASE - 1 + number * STEP, BASE - 1 + (number + 1) * STEP


def _build_event(number: int, stage: str) -> dict[str, object]:
    lo, hi = _compute_bounds(number)
    sink = {"land": "", "merge": "", "mirror": "mirror"}.get(stage, "sql")
    return {
        "lo": lo, "hi": hi, "stage": stage, "sink": sink, "state": "done", "rows": 1000, "seconds": 0.5,
        "run_id": f"run-{number}", "at_ms": (hi >> 18) + 1000, "blocked_by": "", "detail": '{"ddl": 0}',
        "manifest": _build_manifest(lo, hi) if stage == "land" else "m" * 1500 if stage == "convert" else "",
    }  # fmt: skip


def _build_manifest(lo: int, hi: int) -> str:
    members = tuple(MemberProof(f"pump-{n}", "u" * 300, "online", lo, hi, 500) for n in (1, 2))
    return WindowManifest("bench", 1, lo, hi, "c" * 64, members, 1000, 0, 0, 200_000, 1, "d" * 64).to_json()


def _write_mirror(paths: LakePaths, table: TableDef) -> None:
    def build_rows() -> Iterator[pa.RecordBatch]:
        for first in range(FIRST_KEY, FIRST_KEY + KEYS, KEYS // 10):
            keys = [str(key) for key in range(first, first + KEYS // 10)]
            texts: dict[str, list[str | None]] = {name: list(keys) for name in ("id", "k", "c", "pad")}
            yield from build_typed_rows(table, texts, [BASE] * len(keys), [0] * len(keys)).to_batches()

    replica = Replica(paths.locate_mirror("sbtest", table.name), 400)
    replica.create(table, BASE)
    replica.fill(table, build_rows(), _compute_bounds(0)[1])


def _write_history(mutations: int, paths: LakePaths) -> None:
    """Write the files that `binlake maintain` would write of these rows, without the windows' files before."""
    ensure_tables(paths)
    step = compute_step(mutations)
    builders: tuple[tuple[LakeTable, Callable[[range, int], pa.Table]], ...] = (
        (MUTATION, build_mutations),
        (BINLOG, build_binlogs),
    )
    for table, build in builders:
        parts: list[TablePart] = []
        for numbers in cut_by_day(mutations, _ROWS_OF_A_FILE):
            parts += write_clustered(paths.locate_table(table.name), table, build(numbers, step))
        commit_parts(paths, table, parts, [], {"stage": "bench"})


def measure(folder: Path) -> None:
    """Print a line per request."""
    paths = LakePaths(str(folder / "lake" / "bench"))
    lo, hi = _compute_bounds(WINDOWS // 2)
    [version, *_] = read_changes(paths, lo, hi)
    replications = folder / "replications"
    replications.mkdir(exist_ok=True)
    (replications / "bench.toml").write_text(
        f'name = "bench"\n[source]\npd-urls = "http://127.0.0.1:1"\n[lake]\npath = "{folder / "lake"}"\n'
        '[target]\ndb-type = "mariadb"\n'
    )
    home = folder / "airflow"
    shutil.rmtree(home, ignore_errors=True)
    with Airflow(home, {"BINLAKE_REPLICATIONS": str(replications)}, only=("api-server",)) as airflow:
        client = AirflowClient(airflow.url, airflow.user, airflow.password)
        server = psutil.Process(airflow.parts[0].pid)
        # The very first request loads Arrow and delta-rs.
        while client.http.get("/binlake/").status_code == httpx.codes.GATEWAY_TIMEOUT:
            pass
        print(f"{'request':<36} {'first':>6} {'median':>7} {'worst':>6} {'CPU':>6}  ms; {ROUNDS} rounds")
        for name, path in _list_requests(version, lo, hi).items():
            _measure_request(name, client.http, server, path)
        client.close()


def _list_requests(version: RowVersion, lo: int, hi: int) -> dict[str, str]:
    base = "/binlake/dags/bench"
    row = f"{base}/row?table={version.db}.{version.table}&json={quote(version.key)}"
    mirrored = f"{base}/table?table=sbtest.sbtest0"
    changed = f"{base}/diff?table={version.db}.{version.table}"
    return {
        "overview": "/binlake/",
        "replication, PD unreachable": base,
        "windows, in the middle": f"{base}?upto={hi}",
        "run": f"{base}/runs/run-{WINDOWS // 2}",
        "DDL timeline": f"{base}/ddl",
        "checkpoints, in the middle": f"{base}/checkpoints?upto={hi}",
        "row, one key of a million": row,
        "row, up to the middle": f"{row}&upto={hi}",
        "transaction by commit_ts": f"{base}/transaction?ts={version.commit_ts}",
        "transaction by start_ts": f"{base}/transaction?ts={version.start_ts}",
        "table at a window's end": f"{mirrored}&at={hi}",
        "table inside a window": f"{mirrored}&at={(lo + hi) // 2}",
        "difference, one window": f"{changed}&from={lo}&to={hi}",
        "difference, 100 windows": f"{changed}&from={lo}&to={lo + 100 * STEP}",
    }


def _measure_request(name: str, http: httpx.Client, server: psutil.Process, path: str) -> None:
    times = []
    before = 0.0
    for number in range(ROUNDS + 1):
        if number == 1:
            before = _measure_cpu(server)
        began = time.perf_counter()
        answer = http.get(path)
        times.append(1000 * (time.perf_counter() - began))
        if answer.status_code != httpx.codes.OK:
            raise SystemExit(f"{name}: {answer.status_code} {answer.text[-500:]}")
    cpu = 1000 * (_measure_cpu(server) - before) / ROUNDS
    later = sorted(times[1:])
    print(f"{name:<36} {times[0]:>6.0f} {later[ROUNDS // 2]:>7.0f} {later[-1]:>6.0f} {cpu:>6.0f}", flush=True)


def _measure_cpu(server: psutil.Process) -> float:
    spent = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return sum(times.user + times.system for times in spent)


if __name__ == "__main__":
    bench_folder = Path(os.environ.get("BINLAKE_BENCH_DIR") or tempfile.gettempdir()) / "binlake-bench-page"
    make(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000, bench_folder)
    measure(bench_folder)
