"""The pages inside Airflow's UI, and the same as JSON. Every page requires a login; nothing is loaded from other hosts.

Airflow mounts a plugin's app without any authentication. So every route here requires a user, and the routes of a
replication require permission to read its DAG. Changing a feed requires permission to edit the DAG, and the request
must come from the page itself. The lake is read through delta-rs, never Spark.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from fastapi import Depends, FastAPI, Request
from jinja2 import Environment, FileSystemLoader
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from binlake.config import Replication
from binlake.config import load as replications
from binlake.errors import BinlakeError, ConfigError, Transient
from binlake.health.orchestration import SYNC
from binlake_airflow.actions import InvalidFields
from binlake_airflow.dags.dagparts import KINDS
from binlake_airflow.pages import acting, views
from binlake_airflow.pages.access import (
    list_readable_replications,
    may_edit,
    may_read,
    may_trigger,
    require_same_origin,
)
from binlake_airflow.pages.acting import build_acted_view
from binlake_airflow.pages.panels import build_panels, draw_lag_spark
from binlake_airflow.pages.request import BadPageRequest, NotPossible, PageRequest, read_form
from binlake_airflow.pages.words import FILTERS
from binlake_airflow.pages.workers import DEADLINE_S, BoundedWorkers, Overview, TooBusy

log = structlog.get_logger(__name__)

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: browsers would then hide from this server which page sent a form.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TEMPLATES = Path(__file__).resolve().parent / "templates"
_pages = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
_pages.filters.update(FILTERS)
_pages.globals.update(build_panels=build_panels, draw_lag_spark=draw_lag_spark)
_bounded = BoundedWorkers()
_overview = Overview(_bounded)

app = FastAPI(title="Binlake", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(get_user)])


@dataclass(frozen=True)
class Answer:
    """The answer to a request: the `view`, the HTTP `status`, and an error if there was one."""

    view: dict[str, Any]
    status: int = 200
    error: str = ""
    hint: str = ""

    def build_body(self) -> dict[str, Any]:
        """The answer's JSON."""
        return self.view if not self.error else {**self.view, "error": self.error, "hint": self.hint}


@app.middleware("http")
async def _add_security_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    response.headers.update(_HEADERS)
    return response


@app.get("/style.css")
def style_sheet() -> Response:
    """The one style sheet."""
    return Response((_TEMPLATES / "style.css").read_text(encoding="utf-8"), media_type="text/css")


@app.get("/page.js")
def script() -> Response:
    """The one script."""
    return Response((_TEMPLATES / "page.js").read_text(encoding="utf-8"), media_type="text/javascript")


@app.get("/")
async def overview_page(request: Request, user: GetUserDep) -> Response:
    """All replications that the user may read."""
    return _build_html_response("overview.html", request, await _run_view(_read_list(user)))


@app.get("/api")
async def overview_json(user: GetUserDep) -> Response:
    """`overview_page` for programs."""
    return _build_json_response(await _run_view(_read_list(user)))


async def _read_list(user: BaseUser) -> dict[str, Any]:
    return await _overview.read_all(
        await _bounded.run(lambda: list_readable_replications(user)), views.read_replication_state
    )


def _add_page(path: str, template: str, view: views.View) -> None:
    """The page of one replication at `path`, and its JSON at `/api` before it."""

    async def page(request: Request, user: GetUserDep) -> Response:
        answer = await _answer_replication(request, user, view)
        name = _find_replication_name(request) or ""
        may_act = await _bounded.run(lambda: may_edit(user, name) or may_trigger(user, name))
        return _build_html_response(template, request, answer, may_act=may_act)

    async def data(request: Request, user: GetUserDep) -> Response:
        return _build_json_response(await _answer_replication(request, user, view))

    guarded = [Depends(requires_access_dag(method="GET"))]
    app.add_api_route(path, page, dependencies=guarded)
    app.add_api_route(f"/api{path}", data, dependencies=guarded)


for _path, (_template, _view) in views.PAGES.items():
    _add_page(_path, _template, _view)


_READ = [Depends(requires_access_dag(method="GET"))]


@app.get("/dags/{dag_id}/export/{file}", dependencies=_READ)
async def export(request: Request, user: GetUserDep) -> Response:
    """What a page shows, as a file: `row.csv`, `table.json`, `diff.csv`, …"""
    answer = await _answer_replication(request, user, views.build_export_file)
    if answer.error:
        return _build_html_response("error.html", request, answer)
    headers = {"Content-Disposition": f'attachment; filename="{answer.view["name"]}"'}
    return Response(answer.view["text"], media_type=answer.view["media_type"], headers=headers)


_ACT = [*_READ, Depends(require_same_origin)]


@app.get("/dags/{dag_id}/act", dependencies=_READ)
async def actions_page(request: Request, user: GetUserDep) -> Response:
    """Everything that can be done, and what was done."""
    return _build_html_response("actions.html", request, await _answer_actions(request, user))


@app.get("/api/dags/{dag_id}/act", dependencies=_READ)
async def actions_json(request: Request, user: GetUserDep) -> Response:
    """`actions_page` for programs."""
    return _build_json_response(await _answer_actions(request, user))


async def _answer_actions(request: Request, user: BaseUser) -> Answer:
    return await _answer_replication(request, user, lambda replication, _: acting.build_actions_view(replication, user))


@app.get("/dags/{dag_id}/act/{action}", dependencies=_READ)
async def action_page(request: Request, user: GetUserDep) -> Response:
    """The form of an action; with `review` what will happen, to be confirmed."""
    return _build_html_response("act.html", request, await _answer_form(request, user, request.query_params))


@app.post("/dags/{dag_id}/act/{action}", dependencies=_ACT)
async def act(request: Request, user: GetUserDep) -> Response:
    """Do the action, then redirect to its run or to the replication; an error shows the form as it was typed."""
    typed = await read_form(request)
    answer = await _answer_act(request, user, typed)
    if answer.error:
        form = await _answer_form(request, user, typed)
        said = {"failed": answer.error, "hint": answer.hint, "review": False}
        return _build_html_response(
            "act.html", request, replace(form, view={**form.view, **said}, status=answer.status)
        )
    base = f"{_find_root(request)}dags/{quote(answer.view['name'])}"
    run_id, kind = answer.view["run_id"], answer.view["dag_id"].partition(".")[2] or SYNC
    return RedirectResponse(f"{base}/acts/{kind}/{quote(run_id)}" if run_id else base, 303)


@app.post("/api/dags/{dag_id}/act/{action}", dependencies=_ACT)
async def act_json(request: Request, user: GetUserDep) -> Response:
    """`act` for programs: the fields as a form or a JSON object; the answer names the run, if there is one."""
    return _build_json_response(await _answer_act(request, user, await read_form(request)))


async def _answer_form(request: Request, user: BaseUser, typed: Mapping[str, str]) -> Answer:
    def build(replication: Replication, query: PageRequest) -> dict[str, Any]:
        action = acting.require_action(replication, query.path["action"])
        own = {field.name: typed[field.name] for field in action.fields if field.name in typed}
        problems: Mapping[str, str] = {}
        if "review" in typed or not action.fields or request.method == "POST":
            try:
                return acting.build_review_view(replication, action, action.parse(own), user)
            except InvalidFields as error:
                problems = error.problems
        return acting.build_form_view(replication, action, own, problems, user)

    return await _answer_replication(request, user, build)


async def _answer_act(request: Request, user: BaseUser, typed: Mapping[str, str]) -> Answer:
    def do(replication: Replication, query: PageRequest) -> dict[str, Any]:
        action = acting.require_action(replication, query.path["action"])
        try:
            values = action.parse(typed)
        except InvalidFields as error:
            raise BadPageRequest(str(error)) from error
        run_id = acting.do_action(replication, action, values, user)
        return {"name": replication.name, "dag_id": acting.find_dag_id(replication, action), "run_id": run_id}

    return await _answer_replication(request, user, do)


@app.get("/dags/{dag_id}/acts/{kind}/{run_id:path}", dependencies=_READ)
async def acted_page(request: Request, user: GetUserDep) -> Response:
    """The run of an action."""
    return _build_html_response("acted.html", request, await _answer_acted(request, user))


@app.get("/api/dags/{dag_id}/acts/{kind}/{run_id:path}", dependencies=_READ)
async def acted_json(request: Request, user: GetUserDep) -> Response:
    """`acted_page` for programs."""
    return _build_json_response(await _answer_acted(request, user))


async def _answer_acted(request: Request, user: BaseUser) -> Answer:
    def build(replication: Replication, query: PageRequest) -> dict[str, Any]:
        view = build_acted_view(replication, query.path["kind"], query.path["run_id"], user)
        # What a command printed may have values of any column.
        hidden = "" if query.sees_masked or not view["answer"] else _HIDDEN_ANSWER
        return {**view, "answer": "" if hidden else view["answer"], "answer_hidden": hidden}

    return await _answer_replication(request, user, build)


_HIDDEN_ANSWER = "hidden, because columns are masked: to see it needs the right to edit the DAG"
_CHANGES = [Depends(requires_access_dag(method="PUT")), Depends(require_same_origin)]


@app.post("/api/dags/{dag_id}/feeds/{feed}/{action}", dependencies=_CHANGES)
async def change_feed_json(request: Request, user: GetUserDep) -> Response:
    """Pause or resume a feed, for programs: the actions `feed-pause` and `feed-resume` do the same."""
    return _build_json_response(await _change_feed(request, user))


async def _change_feed(request: Request, user: BaseUser) -> Answer:
    def change() -> dict[str, Any]:
        parameters = request.path_params
        # Permission was checked for the DAG in the path, so only that name is accepted, not a side DAG.
        replication = replications.find_replication(parameters["dag_id"])
        if replication is None:
            raise views.NotFound("there is no replication with this name")
        return views.change_feed(replication, parameters["feed"], parameters["action"], user.get_name())

    return await _run_view(_bounded.run(change, request.path_params["dag_id"]))


async def _answer_replication(request: Request, user: BaseUser, view: views.View) -> Answer:
    def find_replication() -> Replication:
        name = _find_replication_name(request)
        if name is None:
            raise views.NotFound("this page does not belong to a replication")
        # A side DAG (`<name>.backfill`) shows the replication's pages to those who may read both.
        if name != request.path_params["dag_id"] and not may_read(user, name):
            raise views.NotAllowed("you may not read the DAG of this replication")
        replication = replications.find_replication(name)
        if replication is None:
            raise views.NotFound("there is no replication with this name")
        return replication

    async def read_view() -> dict[str, Any]:
        replication = await _bounded.run(find_replication)
        query = PageRequest(
            request.path_params, request.query_params, sees_masked=await _bounded.run(lambda: _sees(user, replication))
        )
        build = partial(view, replication, query)
        return await _bounded.run(lambda: views.answer_of_one_moment(build), replication.name)

    return await _run_view(read_view())


def _sees(user: BaseUser, replication: Replication) -> bool:
    """Whether the user may see the values of masked columns."""
    return not replication.mask.columns or may_edit(user, replication.name)


def _find_replication_name(request: Request) -> str | None:
    """The replication to which the page's DAG belongs; None if the page has no DAG."""
    dag_id: str | None = request.path_params.get("dag_id")
    name, _, kind = (dag_id or "").partition(".")
    return name if kind in KINDS else dag_id


async def _run_view(work: Awaitable[dict[str, Any]]) -> Answer:
    try:
        return Answer(await work)
    except (BadPageRequest, ConfigError) as error:
        return Answer({}, 400, getattr(error, "message", str(error)), getattr(error, "hint", ""))
    except views.NotAllowed as error:
        return Answer({}, 403, str(error))
    except views.NotFound as error:
        return Answer({}, 404, str(error))
    except NotPossible as error:
        return Answer({}, 409, str(error))
    except Transient as error:
        return Answer({}, 503, error.message, error.hint)
    except BinlakeError as error:
        # Without its `where`: readers must not see paths and addresses of the deployment.
        return Answer({}, 404, error.message, error.hint)
    except TooBusy:
        return Answer({}, 503, "too many requests at once", "try again in a moment")
    except TimeoutError:
        return Answer({}, 504, f"no answer within {DEADLINE_S:g} s", "ask for less, or use the command `binlake audit`")
    except Exception as error:
        log.exception("page_failed")
        return _build_failed_answer(error)


def _build_failed_answer(error: Exception) -> Answer:
    """The answer when the lake's storage or a file of it fails, or Binlake does; an error's text may have paths."""
    # Imported at call time, as in `views`: delta-rs' threads must not run in a scheduler, which loads this plugin too.
    from binlake.lake.damage import is_storage_error

    if is_storage_error(error):
        return Answer({}, 503, "the lake cannot be read", "see the API server's log")
    return Answer({}, 500, "the page could not be built", "see the API server's log")


def _build_json_response(answer: Answer) -> Response:
    return JSONResponse(answer.build_body(), answer.status)


def _find_root(request: Request) -> str:
    """The path at which Airflow mounted the app, below any prefix that a proxy adds."""
    return str(request.scope.get("root_path", "")).rstrip("/") + "/"


def _build_html_response(template: str, request: Request, answer: Answer, *, may_act: bool = False) -> Response:
    root = _find_root(request)
    text = _pages.get_template("error.html" if answer.error else template).render(
        root=root,
        # A page that updates itself asks for its content without the rest.
        layout="fragment.html" if request.query_params.get("part") else "base.html",
        now=datetime.now(UTC),
        airflow=root.removesuffix("binlake/"),
        dag_id=_find_replication_name(request),
        airflow_dag=request.path_params.get("dag_id"),
        # Links in a frame cannot navigate the Airflow page around it, so the templates need to know.
        framed=request.headers.get("sec-fetch-dest") == "iframe",
        view=answer.view,
        answer=answer,
        may_act=may_act,
        query=request.query_params,
        path=request.url.path,
    )
    return HTMLResponse(text, answer.status)
