"""`make bench-control`: the cost of a stage's control-table queries while the history grows to EVENTS events (50,000).

Every query uses a new reader, as in a new task, so the figures include opening the table (replaying its log):
milliseconds of CPU, all threads. The floor is the first line, the same query on a lake with few windows. The last line
reads all landed windows. `python bench/bench_control.py EVENTS BATCH` commits BATCH windows at once, to make a long
history in a short time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deltalake import DeltaTable

from binlake.lake.members import MemberTable
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.mirror import MirrorState, MirrorVersions
from binlake.pipeline import list_required_stages
from binlake.window.manifest import MemberProof, WindowManifest
from binlake.window.membership import RememberedMember

STAGES = ("land", "merge", *list_required_stages("sql"))
TABLES = 40
BASE = 470614429184294912
STEP = 10_000 << 18
PUMPS = [f"pump-{number}:8250" for number in range(3)]


def main(events: int, batch: int, folder: Path) -> int:
    """Print a line for each tenth of the history."""
    paths = LakePaths(str(folder / "lake"))
    print(
        f"{'events':>8} {'append ms':>10} " + " ".join(f"{name:>13}" for name in list_questions(paths, BASE)),
        flush=True,
    )
    windows = events // len(STAGES)
    log, mirrors, members = WindowLog(paths), MirrorVersions(paths), MemberTable(paths)
    log.record(WindowEvent("start", BASE, BASE, "done"))
    commits, spent, shown = 0, 0.0, 0
    for first in range(1, windows + 1, batch):
        numbers = range(first, min(first + batch, windows + 1))
        began = time.process_time()
        commits += append(log, numbers)
        spent += time.process_time() - began
        append_others(mirrors, members, numbers[-1])
        if numbers[-1] * 10 // windows > shown or first == 1:
            print_line(paths, numbers[-1], 1000 * spent / commits)
            commits, spent, shown = 0, 0.0, numbers[-1] * 10 // windows
    finish(paths, windows)
    return 0


def append(log: WindowLog, numbers: Sequence[int]) -> int:
    """Append the events of the windows `numbers`, one commit for each stage; returns the number of commits."""
    for stage in STAGES:
        log._table.append([build_event(number, stage) for number in numbers])
    return len(STAGES)


def build_event(number: int, stage: str) -> dict[str, object]:
    """A row of the table `window`."""
    lo, hi = BASE + (number - 1) * STEP, BASE + number * STEP
    proofs = tuple(MemberProof(pump, "u" * 36, "online", 0, hi, 1000) for pump in PUMPS)
    manifest = WindowManifest("r", 7, lo, hi, "c" * 64, proofs, 2000, 0, 0, 100_000, 7, f"{number:064x}").to_json()
    return {
        "lo": lo, "hi": hi, "stage": stage, "sink": "" if stage in STAGES[:2] else "sql", "state": "done", "rows": 2000,
        "seconds": 0.5, "run_id": f"run-{number}", "at_ms": number, "blocked_by": "", "detail": '{"ddl": 0}',
        "manifest": manifest if stage in ("land", "convert") else "",
    }  # fmt: skip


def append_others(mirrors: MirrorVersions, members: MemberTable, number: int) -> None:
    """Append the mirror versions of one window, and the members."""
    hi = BASE + number * STEP
    mirrors.record([MirrorState("d", f"t{table}", number, hi - STEP, hi) for table in range(TABLES)])
    members.remember([RememberedMember(pump, "u" * 36, "online", hi, hi) for pump in PUMPS])


def list_questions(paths: LakePaths, hi: int) -> dict[str, Callable[[], object]]:
    """The queries of stages, each with its own reader."""
    return {
        "open": lambda: DeltaTable(paths.locate_table("window")),
        "landed_ts": lambda: WindowLog(paths).find_landed_ts(),
        "landed": lambda: WindowLog(paths).list_landed((hi - STEP, hi)),
        "not_merged": lambda: WindowLog(paths).list_unmerged(hi),
        "manifest": lambda: WindowLog(paths).read_manifest(hi - STEP, hi),
        "events(merge)": lambda: WindowLog(paths).read_events(stage="merge", within=(hi - STEP, hi)),
        "mirror latest": lambda: MirrorVersions(paths).read_latest(),
        "members": lambda: MemberTable(paths).read_all(),
    }


def print_line(paths: LakePaths, number: int, append_ms: float) -> None:
    """Print the milliseconds of CPU of each query, the best of five."""
    figures = [measure_best_seconds(ask) for ask in list_questions(paths, BASE + number * STEP).values()]
    print(f"{number * len(STAGES):>8,} {append_ms:>10.1f} " + " ".join(f"{ms:>10.1f} ms" for ms in figures), flush=True)


def measure_best_seconds(ask: Callable[[], object]) -> float:
    """Milliseconds of CPU, the best of five."""
    times = []
    for _ in range(5):
        began = time.process_time()
        ask()
        times.append(time.process_time() - began)
    return 1000 * min(times)


def finish(paths: LakePaths, windows: int) -> None:
    """Print what maintenance does to the table, and its size on disk."""
    print(f"read of all landed windows: {measure_best_seconds(lambda: WindowLog(paths).list_landed()):.0f} ms")
    began = time.perf_counter()
    print(f"tidy: {WindowLog(paths).tidy()} in {time.perf_counter() - began:.2f} s; {windows:,} windows")
    folder = Path(paths.locate_table("window"))
    log = folder / "_delta_log"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    files = len(DeltaTable(str(folder)).file_uris())
    print(f"files in use {files}, log files {len(list(log.iterdir())):,}, {size:,} bytes")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="binlake-bench-", dir=os.environ.get("BINLAKE_BENCH_DIR")) as name:
        numbers = [int(word) for word in sys.argv[1:]] + [50_000, 1][len(sys.argv) - 1 :]
        sys.exit(main(numbers[0], numbers[1], Path(name)))
