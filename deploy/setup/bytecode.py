"""Compiles the modules that the tests import once after `.venv` changes, so that not every test process does it."""

from __future__ import annotations

import subprocess
import sys

from deploy.setup import packages
from deploy.setup.common import REPOSITORY, hold_install_lock, run_installer

_STAMP = packages.VENV / ".binlake-compiled"


def compile_once() -> str:
    """Import all tests in one process, which stores the bytecode; skipped if done before with these packages."""
    with hold_install_lock("bytecode"):
        wanted = packages.compute_digest()
        if _STAMP.exists() and _STAMP.read_text() == wanted:
            return "is up to date"
        # Ignore tests that cannot be imported: the test run will report them.
        collect = [str(packages.VENV / "bin" / "python"), "-m", "pytest", "--collect-only", "-qq"]
        subprocess.run(collect, cwd=REPOSITORY, capture_output=True, check=False)
        _STAMP.write_text(wanted)
        return "has been compiled"


if __name__ == "__main__":
    sys.exit(run_installer("bytecode", compile_once))
