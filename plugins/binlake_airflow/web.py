"""The page of windows inside Airflow's UI, and the same as JSON: nothing without a login, nothing from other hosts.

Airflow mounts a plugin's app without any authentication: every route here asks for a user, and routes of one
replication for the right to read its DAG. Reads the lake through delta-rs, never Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import Response

from binlake.config import Replication
from binlake_airflow import history, replications

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_TEMPLATES = Path(__file__).resolve().parent / "templates"
_pages = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)

_readable = [Depends(requires_access_dag(method="GET"))]
app = FastAPI(title="Binlake", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(get_user)])


@app.middleware("http")
async def _harden(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    response.headers.update(_HEADERS)
    return response


@app.get("/api/dags/{dag_id}", dependencies=_readable)
def replication_json(dag_id: str) -> dict[str, Any]:
    """Landed ts, lag, who blocks, recent windows of one replication."""
    replication = _replication(dag_id)
    return history.replication_view(replication, _events(replication))


@app.get("/api/dags/{dag_id}/runs/{run_id:path}", dependencies=_readable)
def run_json(dag_id: str, run_id: str) -> dict[str, Any]:
    """Window, rows and seconds of each stage of one run."""
    return history.run_view(_events(_replication(dag_id), run_id), run_id)


@app.get("/dags/{dag_id}", response_class=HTMLResponse, dependencies=_readable)
def replication_page(request: Request, dag_id: str) -> str:
    """`replication_json` for people."""
    return _page("replication.html", request, dag_id, replication_json(dag_id))


@app.get("/dags/{dag_id}/runs/{run_id:path}", response_class=HTMLResponse, dependencies=_readable)
def run_page(request: Request, dag_id: str, run_id: str) -> str:
    """`run_json` for people."""
    return _page("run.html", request, dag_id, run_json(dag_id, run_id))


@app.get("/style.css")
def style() -> Response:
    """The one style sheet."""
    return Response((_TEMPLATES / "style.css").read_text(encoding="utf-8"), media_type="text/css")


def _page(template: str, request: Request, dag_id: str, view: dict[str, Any]) -> str:
    # The path that Airflow mounted the app at, below whatever prefix a proxy adds.
    root = request.scope.get("root_path", "").rstrip("/") + "/"
    return _pages.get_template(template).render(root=root, dag_id=dag_id, view=view)


def _replication(dag_id: str) -> Replication:
    found = replications.named(dag_id)
    if found is None:
        raise HTTPException(404, f"no replication is called {dag_id!r}")
    return found


def _events(replication: Replication, run_id: str | None = None) -> list[dict[str, Any]]:
    # At call time: the scheduler loads this plugin too, and forks tasks; delta-rs' threads must not be there then.
    from binlake.lake.paths import LakePaths
    from binlake.lake.windowlog import WindowLog

    return WindowLog(LakePaths.of(replication)).events(run_id)
