"""Import a long DDL history into an empty lake, then read the schema at random timestamps: seconds and peak memory.

    .venv/bin/python bench/bench_schema.py [jobs]      # default 1000000

Jobs are generated one by one, newest first, as a status port pages them: the printed memory is that of the reader.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.jobhistory import TABLES, endless_jobs

from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory


def main(count: int) -> None:
    """Bootstrap with `count` jobs, then read the schema at twenty timestamps."""
    idle = _read_peak_mib()
    with tempfile.TemporaryDirectory(prefix="binlake-bench-") as folder:
        history = SchemaHistory(LakePaths(f"{folder}/lake"))
        began = time.monotonic()
        state = history.bootstrap(10 * count, endless_jobs(count))
        taken = time.monotonic() - began
        if state.version != count:
            sys.exit(f"the schema is at version {state.version}, not {count}")
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) >> 20
        print(f"bootstrap: {count} jobs in {taken:.0f} s ({count / taken:.0f} jobs/s), {size} MiB in the lake")
        print(f"peak memory: {_read_peak_mib()} MiB ({idle} MiB before the first job); live tables: about {TABLES}")
        timestamps = random.Random(1).sample(range(1, 10 * count), 20)
        began = time.monotonic()
        for ts in timestamps:
            # Every seventh job finishes a little before 10 * version: the version may differ by one.
            if abs(history.read_state_at(ts).version - ts // 10) > 1:
                sys.exit(f"wrong schema at ts {ts}")
        print(f"schema at any ts: {(time.monotonic() - began) / len(timestamps):.2f} s, peak {_read_peak_mib()} MiB")


def _read_peak_mib() -> int:
    # Not ru_maxrss: it starts with the memory of the process that forked this one.
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
