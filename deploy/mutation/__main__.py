"""`make mutate`: tries the mutants of each listed module, and prints those that no test notices.

Exit status 1 if a mutant is neither noticed nor explained, 3 if the time ended before all were tried.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from deploy.local.process import ONE_THREAD
from deploy.mutation.operators import Mutant, build_mutants, compute_digest
from deploy.mutation.results import ROOT, Module, Results, list_modules

_OPTIONS = ("-q", "--tb=short", "-p", "no:cacheprovider", "-p", "deploy.mutation.plugin")


def main(arguments: list[str]) -> int:
    """Run and report. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="make mutate")
    parser.add_argument("modules", nargs="*", help="parts of the modules' paths (default: all in modules.toml)")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after so many seconds; the next call continues"
    )
    parser.add_argument("--report", action="store_true", help="only print the results of earlier runs")
    parser.add_argument("--root", type=Path, default=ROOT, help="the root of another checkout")
    asked = parser.parse_args(arguments)
    until = time.monotonic() + asked.seconds
    chosen = [
        one for one in list_modules(asked.root) if not asked.modules or any(part in one.path for part in asked.modules)
    ]
    bad = missing = 0
    for module in chosen:
        if not asked.report and not _try_mutants(module, until - time.monotonic()):
            return 2
        survivors, untried = _report(module)
        bad, missing = bad + survivors, missing + untried
    return 1 if bad else 3 if missing else 0


def _try_mutants(module: Module, seconds: float) -> bool:
    tried = (
        Results.read(module, compute_digest(module.text), module.tests_digest).killed_by.keys()
        | module.explained.keys()
    )
    if all(mutant.key in tried for mutant in build_mutants(module.text, module.path)):
        return True
    without = [f"--deselect={test}" for test in module.without]
    options = [*_OPTIONS, *without, f"--mutate={module.path}", f"--mutate-seconds={seconds}"]
    # Each mutant is tried in a forked process, which needs a parent without threads.
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", *options, *module.tests]
    return seconds <= 0 or not subprocess.run(command, cwd=module.root, env=environment, check=False).returncode


def _report(module: Module) -> tuple[int, int]:
    """Print the module's result; returns (survivors without a reason, mutants not tried)."""
    by_key = {mutant.key: mutant for mutant in build_mutants(module.text, module.path)}
    killed_by, reasons = Results.read(module, compute_digest(module.text)).killed_by, module.explained
    survivors = [by_key[key] for key, by in killed_by.items() if not by and key not in reasons]
    untried = [key for key in by_key if key not in killed_by and key not in reasons]
    killed = sum(bool(by) for by in killed_by.values())
    print(f"{module.path}: {len(by_key)} mutants, {killed} killed, {len(reasons)} explained, {len(survivors)} survive,"
          f" {len(untried)} not tried")  # fmt: skip
    for mutant in survivors:
        print(_format_difference(module, mutant))
    stale = [key for key in reasons if key not in by_key]
    for key in stale:
        print(f"  explained.toml lists a mutant that {module.path} does not have: {key}")
    return len(survivors) + len(stale), len(untried)


def _format_difference(module: Module, mutant: Mutant) -> str:
    return f"  {module.path}:{mutant.line} {mutant.function}\n    - {mutant.before}\n    + {mutant.after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
