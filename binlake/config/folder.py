"""Finds all replications: one TOML file each, in one folder; a broken file never hides the others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from binlake.config.defaults import NAME as DEFAULTS
from binlake.config.defaults import read_defaults
from binlake.config.load import load_replication
from binlake.config.model import Replication
from binlake.errors import ConfigError

FOLDER_ENV = "BINLAKE_REPLICATIONS"
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ReplicationFolder:
    """The replications of a folder: the valid ones (`good`) by file, and the errors of the other files."""

    good: Mapping[Path, Replication]
    broken: Mapping[Path, ConfigError]


def find_replications_folder() -> Path:
    """The folder in `BINLAKE_REPLICATIONS`, else that of the checkout, else the one beside Airflow's files."""
    if named := os.environ.get(FOLDER_ENV):
        return Path(named)
    if (_REPOSITORY / "pyproject.toml").exists():
        return _REPOSITORY / "replications"
    return Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow") / "replications"


def find_replications(folder: Path | None = None) -> ReplicationFolder:
    """Read every `*.toml` of `folder`, without secrets. If two files have one replication name, both are errors.

    Defaults that cannot be read are an error too, and then of all files.
    """
    good: dict[Path, Replication] = {}
    broken: dict[Path, ConfigError] = {}
    folder = folder or find_replications_folder()
    files = [path for path in sorted(folder.glob("*.toml")) if path.name != DEFAULTS]
    try:
        defaults = read_defaults(folder)
    except ConfigError as error:
        return ReplicationFolder({}, dict.fromkeys([folder / DEFAULTS, *files], error))
    for path in files:
        try:
            good[path] = load_replication(path, secrets=False, defaults=defaults)
        except ConfigError as error:
            broken[path] = error
    for path in _find_duplicate_names(good):
        broken[path] = ConfigError(
            "another file has the same replication name", where={"file": path, "name": good[path].name}
        )
    return ReplicationFolder({path: item for path, item in good.items() if path not in broken}, broken)


def find_replication_of(name: str, folder: Path | None = None) -> ReplicationFolder:
    """The replication `name` alone, if its file has its name, as is the custom; otherwise all of the folder.

    `name` may come from a request: a file outside the folder is not read.
    """
    path = (folder or find_replications_folder()) / f"{name}.toml"
    if "\0" in name or path.name != f"{name}.toml":
        return find_replications(folder)
    try:
        replication = load_replication(path, secrets=False)
    except ConfigError:
        return find_replications(folder)
    return ReplicationFolder({path: replication}, {}) if replication.name == name else find_replications(folder)


def find_replication(name: str) -> Replication | None:
    """The replication called `name`; None if no valid file describes it."""
    return next((item for item in find_replication_of(name).good.values() if item.name == name), None)


def _find_duplicate_names(good: Mapping[Path, Replication]) -> list[Path]:
    counts = Counter(item.name for item in good.values())
    return [path for path, item in good.items() if counts[item.name] > 1]
