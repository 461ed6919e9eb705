"""Who may see and change which replication: decided by Airflow for each DAG, as in its own API."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from fastapi import HTTPException, Request

from binlake.config import Replication
from binlake.config import load as replications
from binlake_airflow.telemetry.addresses import read_base_url

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod


def list_readable_replications(user: BaseUser) -> list[Replication]:
    """The replications whose DAG `user` may read, by name."""
    good = replications.find_replications().good.values()
    return sorted(
        (replication for replication in good if may_read(user, replication.name)),
        key=lambda replication: replication.name,
    )


def may_read(user: BaseUser, dag_id: str) -> bool:
    """Whether Airflow lets `user` read the DAG."""
    return _is_allowed(user, dag_id, "GET")


def may_edit(user: BaseUser, dag_id: str) -> bool:
    """Whether Airflow lets `user` edit the DAG, for example pause it."""
    return _is_allowed(user, dag_id, "PUT")


def may_trigger(user: BaseUser, dag_id: str) -> bool:
    """Whether Airflow lets `user` start runs of the DAG."""
    return _is_allowed(user, dag_id, "POST", DagAccessEntity.RUN)


def require_same_origin(request: Request) -> None:
    """Refuse a request that a page of another site made the user's browser send: a cookie does not prove its origin.

    A token in a header does, because no browser adds one by itself. Raises HTTPException.
    """
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    site = request.headers.get("sec-fetch-site")
    asked_from = urlsplit(request.headers.get("origin", "")).netloc
    # If a proxy changes the host, only Airflow's configuration knows its address.
    own_hosts = {request.headers.get("host", ""), urlsplit(read_base_url()).netloc} - {""}
    if site not in (None, "same-origin") or (site is None and asked_from not in own_hosts):
        raise HTTPException(403, "this request does not come from Binlake's own page")


def _is_allowed(user: BaseUser, dag_id: str, method: ResourceMethod, entity: DagAccessEntity | None = None) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))
