"""Archives the classes that Spark loads, for this machine's JVM: one that starts with the archive takes half the CPU.

`python3.11 -m deploy.setup.classes`; no part of the set-up of demo and tests, which start too few JVMs to gain from it.
It is beside the Delta jars (`binlake/base/jvm.py`), and made again when the JVM, the packages or the jars are others.
"""

from __future__ import annotations

import sys

from deploy.setup import jars, java, packages
from deploy.setup.common import REPOSITORY, command, only_one, run, say

ARCHIVE = jars.ROOT / "classes.jsa"
_STAMP = jars.ROOT / "classes.txt"


def install() -> str:
    """Make sure that the archive is there, and what it is made of; its path. Raises SetupError."""
    packages.sync()
    jars.install()
    with only_one("classes"):
        wanted = _versions()
        if not (ARCHIVE.exists() and _STAMP.exists() and _STAMP.read_text() == wanted):
            say("classes", f"starting Spark once, to write {ARCHIVE}")
            _STAMP.unlink(missing_ok=True)
            fresh = ARCHIVE.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            run([str(packages.VENV / "bin" / "python"), "-m", "deploy.local.class_archive", str(fresh)], REPOSITORY)
            fresh.replace(ARCHIVE)
            _STAMP.write_text(wanted)
        return str(ARCHIVE)


def _versions() -> str:
    """All that decides whether the archive fits."""
    found = java.program()
    shown = java.version_text(found) if found is not None else ""
    return "\n".join([shown, packages.digest(), *(jar.sha256 for jar in jars.JARS)])


if __name__ == "__main__":
    sys.exit(command("classes", install))
