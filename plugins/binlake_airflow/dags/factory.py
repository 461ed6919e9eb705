"""The DAGs of each replication file: `<name>` for its windows, and `<name>.<kind>` for other work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk import DAG

from binlake.config import load_replication
from binlake.config.load import find_replication_of, find_replications
from binlake.errors import ConfigError
from binlake_airflow.dags.dagparts import ReplicationFile
from binlake_airflow.dags.sidedags import build_side_dags
from binlake_airflow.dags.syncdag import build_sync_dag


@dataclass(frozen=True)
class BuiltDags:
    """The DAGs of a folder by id, and the errors of files that could not be built."""

    dags: Mapping[str, DAG]
    broken: Mapping[Path, ConfigError]


def build_all(folder: Path | None = None, only: str | None = None) -> BuiltDags:
    """The DAGs of all replication files in `folder` (default: the configured folder); a broken file has no DAG.

    `only`: a DAG's id. Those of other replications need not be there: a task reads the DAG file for its own.
    """
    replications = find_replication_of(only.partition(".")[0], folder) if only else find_replications(folder)
    dags: dict[str, DAG] = {}
    broken = dict(replications.broken)
    for path, replication in replications.good.items():
        try:
            dags.update(_build_file(ReplicationFile(path.resolve(), replication)))
        except ConfigError as error:
            broken[path] = ConfigError(error.message, hint=error.hint, where={"file": path, **error.where})
    return BuiltDags(dags, broken)


def build_dags(replication_file: str | Path) -> dict[str, DAG]:
    """The DAGs by id of the replication described by the TOML file `replication_file`. Raises ConfigError."""
    path = Path(replication_file).resolve()
    return _build_file(ReplicationFile(path, load_replication(path, secrets=False)))


def build_dag(replication_file: str | Path) -> DAG:
    """Only the DAG of the windows; its id is the replication's name. Raises ConfigError."""
    path = Path(replication_file).resolve()
    return build_sync_dag(ReplicationFile(path, load_replication(path, secrets=False)))


def _build_file(file: ReplicationFile) -> dict[str, DAG]:
    return {dag.dag_id: dag for dag in (build_sync_dag(file), *build_side_dags(file))}
