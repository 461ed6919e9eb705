"""Who may see which replication: Airflow's own answer, asked for each DAG as its API asks it."""

from __future__ import annotations

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.models.dag import DagModel

from binlake.config import Replication
from binlake_airflow import replications


def readable(user: BaseUser) -> list[Replication]:
    """The replications whose DAG `user` may read, by name."""
    good = replications.find_replications().good.values()
    return sorted((one for one in good if may_read(user, one.name)), key=lambda one: one.name)


def may_read(user: BaseUser, dag_id: str) -> bool:
    """Whether Airflow lets `user` read the DAG."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method="GET", details=details, user=user))
