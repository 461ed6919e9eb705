"""`make simulate SEED=N`: repeat one run and show all its events; `SEEDS=` and `SCENARIO=` run more of them."""

from __future__ import annotations

import argparse
import sys
import time

from simulator.scenarios import SCENARIOS, shape_of
from simulator.world import run


def main() -> int:
    """Run; return 1 when an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from the seed on")
    parser.add_argument("--scenario", default="", choices=["", *SCENARIOS], help="instead of the seed's own mixture")
    args = parser.parse_args()
    failed = 0
    for seed in range(args.seed, args.seed + args.seeds):
        began = time.process_time()
        report = run(seed, shape_of(seed, args.scenario))
        if args.seeds == 1 or report.failure is not None:
            print("\n".join(report.trace if args.seeds == 1 else []))
            print(report.told(args.scenario))
        failed += report.failure is not None
        print(
            f"seed {seed}: {report.steps} steps, {time.process_time() - began:.1f} s, {dict(report.counts)}", flush=True
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
