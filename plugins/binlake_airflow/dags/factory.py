"""The DAGs of each replication file: `<name>` for its windows, and `<name>.<kind>` beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk import DAG

from binlake.config import load_replication
from binlake.errors import ConfigError
from binlake_airflow.dags.dagparts import ReplicationFile
from binlake_airflow.dags.sidedags import side_dags
from binlake_airflow.dags.syncdag import sync_dag
from binlake_airflow.replications import find


@dataclass(frozen=True)
class Built:
    """The DAGs of a folder by id, and what is wrong with the files that give none."""

    dags: Mapping[str, DAG]
    broken: Mapping[Path, ConfigError]


def build_all(place: Path | None = None) -> Built:
    """The DAGs of all replication files in `place` (default: the configured folder); of a file all or none."""
    found = find(place)
    dags: dict[str, DAG] = {}
    broken = dict(found.broken)
    for path, replication in found.good.items():
        try:
            dags.update(_built(ReplicationFile(path.resolve(), replication)))
        except ConfigError as error:
            broken[path] = ConfigError(error.message, hint=error.hint, where={"file": path, **error.where})
    return Built(dags, broken)


def build_dags(replication_file: str | Path) -> dict[str, DAG]:
    """The DAGs by id of the replication described by the TOML file `replication_file`. Raises ConfigError."""
    path = Path(replication_file).resolve()
    return _built(ReplicationFile(path, load_replication(path, secrets=False)))


def build_dag(replication_file: str | Path) -> DAG:
    """The DAG of its windows alone; its id is the replication's name. Raises ConfigError."""
    path = Path(replication_file).resolve()
    return sync_dag(ReplicationFile(path, load_replication(path, secrets=False)))


def _built(place: ReplicationFile) -> dict[str, DAG]:
    return {dag.dag_id: dag for dag in (sync_dag(place), *side_dags(place))}
