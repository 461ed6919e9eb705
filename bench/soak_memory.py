"""Memory of a pump under load: `python bench/soak_memory.py [SECONDS] [ROUND_S]`; an hour of rounds by default.

In each round 64 writers write for a second at full speed, then the round pulls what they wrote. RSS is printed once a
minute. The last line compares the last quarter of the run with the second one; in the first, the caches still fill.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench_pump import CLUSTER_ID, FIRST_TS, WRITE, _Pump, _run_load

from binlake.cluster.pumpclient import PumpReader

_WRITERS = 64
_SIZE = 200


def main(seconds: float, round_s: float) -> None:
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("BINLAKE_BENCH_DIR")) as name,
        _Pump(Path(name)) as pump,
    ):
        began, start, pulled, written = time.monotonic(), FIRST_TS, 0, 0
        rss, printed_at = list[int](), 0.0
        reader = PumpReader(pump.address, CLUSTER_ID)
        while (now := time.monotonic() - began) < seconds:
            load = _run_load(pump.address, WRITE, _WRITERS, _SIZE, start, 1.0)
            written += load.calls
            until = reader.read_info().max_commit_ts
            pulled += sum(1 for _ in reader.pull(start - 1, until))
            start += 2 * load.calls + 2 * _WRITERS
            rss.append(pump.read_rss() >> 20)
            if now - printed_at >= 60 or len(rss) == 1:
                printed_at = now
                print(f"{now:>6.0f} s {written:>12,} writes {pulled:>12,} pulled, RSS {rss[-1]:>4} MiB", flush=True)
            time.sleep(max(0.0, round_s - (time.monotonic() - began - now)))
    quarter = max(1, len(rss) // 4)
    second, last = statistics.median(rss[quarter : 2 * quarter] or rss), statistics.median(rss[-quarter:])
    print(f"{written:,} writes, {pulled:,} pulled: RSS {second:.0f} MiB in the second quarter, {last:.0f} in the last")


if __name__ == "__main__":
    arguments = [float(argument) for argument in sys.argv[1:]]
    main(arguments[0] if arguments else 3600.0, arguments[1] if len(arguments) > 1 else 10.0)
