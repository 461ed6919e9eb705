"""What Airflow loads at start: the app of pages with its links in the UI, the timetable, the listener for run notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from airflow.plugins_manager import AirflowPlugin

from binlake.common.secrets import ask_for_connections
from binlake_airflow.telemetry.addresses import PAGES, read_base_url
from binlake_airflow.telemetry.notes import RunNotes
from binlake_airflow.timetable import BackfillIntervals

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class _Pages:
    """The app of `binlake_airflow.pages.web`, imported at the first request.

    The scheduler and every task load this plugin too, and importing the web server's modules would cost them seconds.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from binlake_airflow.pages.web import app

        await app(scope, receive, send)


def _find_connection(conn_id: str) -> str | None:
    # Imported when it is needed, as above.
    from binlake_airflow.operators.connections import find_connection

    return find_connection(conn_id)


ask_for_connections(_find_connection)


def _build_external_views() -> list[dict[str, Any]]:
    # If there is a proxy, the UI is below the path of `[api] base_url`.
    base = urlparse(read_base_url()).path + PAGES
    return [
        {
            "name": "Binlake",
            "href": f"{base}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "binlake",
        },
        {
            "name": "Windows",
            "href": f"{base}/dags/{{DAG_ID}}",
            "destination": "dag",
            "url_route": "binlake-windows",
        },
        {
            "name": "Window",
            "href": f"{base}/dags/{{DAG_ID}}/runs/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "binlake-window",
        },
    ]


_TIMETABLES: list[Any] = [BackfillIntervals]
_LISTENERS: list[Any] = [RunNotes()]
_APPS: list[Any] = [{"app": _Pages(), "url_prefix": PAGES, "name": "Binlake"}]


class BinlakePlugin(AirflowPlugin):
    """Pages at `/binlake`, in the UI's menu and inside a DAG's and a run's page; intervals of backfills; run notes."""

    name = "binlake"
    timetables = _TIMETABLES
    listeners = _LISTENERS
    fastapi_apps = _APPS
    external_views = _build_external_views()
