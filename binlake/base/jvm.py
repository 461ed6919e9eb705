"""What a JVM for Spark is started with: the Delta jars and, if it exists, the archive of Spark's loaded classes.

`python -m deploy.setup.classes` writes the archive, for the JVM and the jars of this machine. A JVM that maps it need
not read and verify some 15,000 classes: up to the first write of a Delta table it takes 14 s of CPU instead of 23 s.
A JVM that the archive does not fit ignores it.
"""

from __future__ import annotations

import os
from pathlib import Path

from binlake.errors import ConfigError

JARS_ENV = "BINLAKE_JARS"
# The project has its own jar folder: Spark's resolver would fetch 33 artifacts, and fails on half-filled caches.
DEFAULT_JARS = Path(__file__).resolve().parents[2] / ".local" / "jars"
ARCHIVE = "classes.jsa"
"""File name of the archive, in the folder of the jars."""
_HINT = f"run `make setup`, or set {JARS_ENV} to a folder with Delta's jars for your Spark (docs/operate/install.md)"
# A driver lives for one stage: without the optimising compiler it takes half the CPU (stack facts, "Spark and Delta").
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def list_delta_jars() -> list[str]:
    """The Delta jars of `BINLAKE_JARS` or the project's `.local/jars`. Raises ConfigError."""
    folder = _find_folder()
    jars = sorted(str(jar) for jar in folder.glob("*.jar"))
    if not jars:
        raise ConfigError("no Delta jars found", where={"folder": folder}, hint=_HINT)
    return jars


def archive_options() -> str:
    """The options with which a JVM uses the archive; empty if there is no archive."""
    archive = _find_folder() / ARCHIVE
    if not archive.exists() or " " in str(archive):
        return ""
    # Without the last two options, a JVM with other jars logs each time that it does not use the archive.
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def format_short_lived_options() -> str:
    """Options of a driver that runs one stage or command in its own process."""
    return f"{SHORT_LIVED} {archive_options()}".strip()


def _find_folder() -> Path:
    return Path(os.environ.get(JARS_ENV) or DEFAULT_JARS)
