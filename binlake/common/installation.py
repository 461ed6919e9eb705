"""What this installation has: packages of its extras, and Spark's Delta jars.

A host installs only what it runs (`pip install 'binlake[pump]'`), so each command may meet a module that is missing.

A JVM for Spark is started with the Delta jars and, if it exists, the archive of Spark's loaded classes. `python -m
deploy.setup.classes` writes the archive, for the JVM and the jars of this machine. A JVM that maps it need not read and
verify some 15,000 classes: up to the first write of a Delta table it takes 14 s of CPU instead of 23 s. A JVM that the
archive does not fit ignores it.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from binlake.errors import ConfigError

EXTRAS: dict[str, tuple[str, ...]] = {
    "plyvel": ("pump",),
    "pyarrow": ("lake", "feeder"),
    "croniter": ("lake",),
    "deltalake": ("lake",),
    "obstore": ("lake",),
    "sqlglot": ("lake",),
    "tenacity": ("lake",),
    "yaml": ("lake",),
    "confluent_kafka": ("feeds",),
    "fastavro": ("feeds",),
    "pyspark": ("spark",),
    "airflow": ("airflow",),
    "opentelemetry": ("traces",),
}
"""The extras that install a module; first the smallest one that is enough for commands that name no extra."""
_SHOWN = ("apache-airflow", "pyspark", "pyspark-client", "deltalake", "pyarrow", "grpcio", "plyvel")


def explain_missing(error: BaseException, command: str = "", extras: tuple[str, ...] = ()) -> ConfigError | None:
    """The error for people if a module of an extra is missing, else None; `extras`: those that `command` declares."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    known = EXTRAS[module]
    extra = next((name for name in extras if name in known), known[0])
    who = f"`binlake {command}`" if command else "this"
    return ConfigError(
        f"{who} needs the extra `{extra}`", where={"missing": module}, hint=f"pip install 'binlake[{extra}]'"
    )


def require_one_pyspark() -> None:
    """Raises ConfigError if pyspark and pyspark-client have two versions: one has overwritten files of the other."""
    full, client = find_version("pyspark"), find_version("pyspark-client")
    if full and client and full != client:
        raise ConfigError(
            "pyspark and pyspark-client share files and have two versions",
            where={"pyspark": full, "pyspark-client": client},
            hint=f"pip install --force-reinstall --no-deps pyspark=={client} pyspark-client=={client}",
        )


def find_version(package: str) -> str:
    """The installed version of `package`; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def list_versions() -> list[str]:
    """`NAME VERSION` of Binlake and of the installed packages whose versions matter in a report of a fault."""
    found = [(name, find_version(name)) for name in ("binlake", *_SHOWN)]
    return [f"{name} {number}" for name, number in found if number]


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
