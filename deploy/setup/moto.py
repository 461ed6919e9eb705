"""Installs moto's S3 server into its own environment, `.local/moto`, for tests of a feed's files in an object store.

It is separate from `.venv` because it needs older versions of packages that Binlake uses.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup.common import LOCAL, install_by_lock, run, run_installer
from deploy.setup.packages import build_uv_environment, find_python, install_uv

ROOT = LOCAL / "moto"
LOCK = Path(__file__).with_suffix(".lock")


def install(root: Path = ROOT) -> Path:
    """Make sure that the server is installed as the lock says; returns the Python that runs it. Raises SetupError."""
    install_by_lock("moto", root, LOCK, _fill)
    return root / "bin" / "python"


def _fill(tree: Path) -> None:
    uv, environment = str(install_uv()), build_uv_environment()
    run(
        [uv, "venv", "--quiet", "--relocatable", "--allow-existing", "--python", find_python(), str(tree)],
        env=environment,
    )
    words = ["pip", "install", "--quiet", "--python", str(tree / "bin" / "python"), "--require-hashes", "-r", str(LOCK)]
    run([uv, *words], env=environment)


if __name__ == "__main__":
    sys.exit(run_installer("moto", lambda: str(install())))
