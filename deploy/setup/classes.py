"""Archives the classes that Spark loads, for this machine's JVM: with the archive a JVM needs half the CPU to start.

`python3.11 -m deploy.setup.classes`; not part of the setup of demo and tests, which start too few JVMs to benefit. The
archive is next to the Delta jars (`binlake/common/installation.py`), and is made again if the JVM, the packages or the
jars change.
"""

from __future__ import annotations

import sys

from deploy.setup import jars, java, packages
from deploy.setup.common import REPOSITORY, hold_install_lock, run, run_installer, say

ARCHIVE = jars.ROOT / "classes.jsa"
_STAMP = jars.ROOT / "classes.txt"


def install() -> str:
    """Make sure that the archive exists, with the packages and jars it needs; returns its path. Raises SetupError."""
    packages.sync()
    jars.install()
    with hold_install_lock("classes"):
        wanted = _describe_versions()
        if not (ARCHIVE.exists() and _STAMP.exists() and _STAMP.read_text() == wanted):
            say("classes", f"starting Spark once, to write {ARCHIVE}")
            _STAMP.unlink(missing_ok=True)
            fresh = ARCHIVE.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            run([str(packages.VENV / "bin" / "python"), "-m", "deploy.local.class_archive", str(fresh)], REPOSITORY)
            fresh.replace(ARCHIVE)
            _STAMP.write_text(wanted)
        return str(ARCHIVE)


def _describe_versions() -> str:
    """Everything that determines whether the archive is still valid."""
    program = java.find_java()
    shown = java.read_version(program) if program is not None else ""
    return "\n".join([shown, packages.compute_digest(), *(jar.sha256 for jar in jars.JARS)])


if __name__ == "__main__":
    sys.exit(run_installer("classes", install))
