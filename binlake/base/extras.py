"""Which extra of the package installs a module that an installation may lack: the one place that says so.

A host installs only what it runs (`pip install 'binlake[pump]'`), so each command may meet a module that is missing.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

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
