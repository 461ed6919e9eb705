"""Actions on the replication's page inside Airflow's own server: forms, confirmation, rights, runs, the audit entry."""

from __future__ import annotations

import json
import shlex
from html import escape as escape_html
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from airflow.api_fastapi.app import get_auth_manager
from support.airflow_dags import register_dag
from support.replication_files import write_replication

from binlake.cli import prepare
from binlake_airflow.actions import InvalidFields
from binlake_airflow.actiontable import ACTIONS

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

PAGE = "/binlake/dags/shop"
LO, HI = "470583292723200001", "470583292723200999"
FEED = 'name = "orders"\nsink-uri = "kafka://127.0.0.1:1/t?protocol=avro"\nschema-registry = "http://127.0.0.1:1"'
TYPED: dict[str, dict[str, str]] = {
    "verify": {"tables": "shop.item\nshop.order", "sample": "0.1"},
    "repair": {"tables": "shop.item"},
    "load": {"until": "landed"},
    "repair-range": {"from": LO, "to": HI},
    "rebuild": {"from": LO, "to": HI, "through": "convert"},
    "replay": {"from": LO, "to": HI, "into": "copy"},
    "rollback": {"commit_ts": LO, "force": "yes"},
    "emit": {"feed": "orders", "from": LO, "to": HI, "topic": "again"},
    "table-aside": {"table": "shop.item", "reason": "--too narrow"},
    "table-back": {"table": "shop.item", "recreate": "yes"},
    "ddl-release": {"commit_ts": LO},
    "ddl-replace": {"commit_ts": LO, "sql": "ALTER TABLE `a`\nADD c INT DEFAULT '--x'", "reason": "it's too narrow"},
    "ddl-skip": {"commit_ts": LO},
    "lock-resolve": {"table": "shop.item", "without": "a.b"},
    "pump-pause": {"pump": "pump-1"},
    "pump-offline": {"pump": "pump-1"},
    "txn-resolve": {"pump": "pump-1", "start_ts": LO, "outcome": "committed", "commit_ts": HI},
    "txn-give-up": {"pump": "pump-1", "start_ts": LO, "commit_ts": HI},
    "feed-pause": {"feed": "orders"},
    "feed-resume": {"feed": "orders"},
}
"""Good values of each action that has fields it needs."""


def escape(text: str) -> str:
    """As the templates do."""
    return escape_html(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def write_shop(folder: Path) -> Path:
    return write_replication(folder, "shop", source='pd-urls = "http://127.0.0.1:1"', feeds=[FEED])


@pytest.fixture(scope="module")
def dag_ids(airflow_db: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All DAGs of `shop`, known to Airflow."""
    assert airflow_db.is_dir()
    path = write_shop(tmp_path_factory.mktemp("registered"))
    kinds = {one.way for one in ACTIONS.values() if not one.at_once}
    return [register_dag(path, paused=False, kind=kind) for kind in sorted(kinds)]


@pytest.fixture
def file(folder: Path, dag_ids: list[str]) -> Path:
    """The replication `shop` with a feed; its DAGs have no run, and the audit log has no action."""
    from airflow.models.dagrun import DagRun
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id.in_(dag_ids)))
        session.execute(delete(Log).where(Log.event.startswith("binlake_")))
    return write_shop(folder)


def read_runs(dag_id: str) -> list[Any]:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(DagRun).where(DagRun.dag_id == dag_id)).all())


def read_log() -> list[tuple[str, str, str, str]]:
    """Event, owner, DAG and command of each action in Airflow's audit log."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        rows = session.scalars(select(Log).where(Log.event.startswith("binlake_")).order_by(Log.id)).all()
        return [(row.event, row.owner, row.dag_id, json.loads(row.extra)["command"]) for row in rows]


@pytest.mark.parametrize("name", ACTIONS)
def test_command_of_an_action_is_one_that_its_program_understands(name: str) -> None:
    action = ACTIONS[name]
    words = shlex.split(action.format_command(action.parse(TYPED.get(name, {})), "shop"))
    if words[0] == "binlake":
        prepare(words[1:])
    else:
        assert words == ["airflow", "dags", {"pause": "pause", "resume": "unpause", "run": "trigger"}[name], "shop"]


@pytest.mark.parametrize("name", [name for name, one in ACTIONS.items() if not one.at_once])
def test_confirmed_action_is_a_run_that_its_dag_accepts_and_airflows_log_names_the_user(
    server: httpx.Client, bearer: dict[str, str], file: Path, name: str
) -> None:
    assert file.is_file()
    action, typed = ACTIONS[name], TYPED.get(name, {})
    dag_id = f"shop.{action.way}" if action.way else "shop"
    review = server.get(f"{PAGE}/act/{name}", params={**typed, "review": "1"}, headers=bearer)
    command = action.format_command(action.parse(typed), "shop")
    assert review.status_code == 200
    assert escape(command) in review.text
    # Looking at it does nothing.
    assert (read_runs(dag_id), read_log()) == ([], [])
    done = server.post(f"{PAGE}/act/{name}", data=typed, headers=bearer, follow_redirects=False)
    (run,) = read_runs(dag_id)
    assert (done.status_code, done.headers["location"]) == (
        303, f"{PAGE}/acts/{action.way or 'sync'}/{quote(run.run_id)}",
    )  # fmt: skip
    assert run.conf == action.build_conf(action.parse(typed))
    assert run.triggering_user_name == "admin"
    assert read_log() == [(f"binlake_{name}", "admin", dag_id, command)]
    shown = server.get(done.headers["location"], headers=bearer)
    assert (shown.status_code, "Queued" in shown.text, "admin" in shown.text) == (200, True, True)
    listed = server.get(f"{PAGE}/act", headers=bearer).text
    assert escape(command) in listed
    assert quote(run.run_id) in listed


def test_pause_and_resume_are_done_at_once(server: httpx.Client, bearer: dict[str, str], file: Path) -> None:
    assert file.is_file()
    for name, paused in (("pause", True), ("resume", False)):
        assert server.post(f"{PAGE}/act/{name}", headers=bearer, follow_redirects=False).headers["location"] == PAGE
        assert is_paused("shop") is paused
        offered = "Resume" if paused else "Pause"
        assert f"act/{offered.lower()}" in server.get(PAGE, headers=bearer).text
    assert [(event, dag_id) for event, _, dag_id, _ in read_log()] == [
        ("binlake_pause", "shop"), ("binlake_resume", "shop"),
    ]  # fmt: skip


def test_error_keeps_what_was_typed_and_says_which_field_is_wrong(
    server: httpx.Client, bearer: dict[str, str], file: Path
) -> None:
    assert file.is_file()
    typed = {"from": HI, "to": LO, "commit_ts": "", "extra": "x"}
    answers = [
        server.get(f"{PAGE}/act/repair-range", params={**typed, "review": "1"}, headers=bearer),
        server.post(f"{PAGE}/act/repair-range", data=typed, headers=bearer),
    ]
    assert [answer.status_code for answer in answers] == [200, 400]
    for answer in answers:
        assert f'value="{HI}"' in answer.text
        assert f'value="{LO}"' in answer.text
    assert "To: must be after From." in answers[0].text
    assert "this action has no such field" in answers[1].text
    program = server.post("/binlake/api/dags/shop/act/repair-range", json={"from": "yesterday"}, headers=bearer)
    assert (program.status_code, "neither a commit_ts nor a time" in program.json()["error"]) == (400, True)
    assert (read_runs("shop.backfill"), read_log()) == ([], [])


def test_hostile_values_are_escaped_and_never_options(server: httpx.Client, bearer: dict[str, str], file: Path) -> None:
    assert file.is_file()
    nasty = "<script>alert(1)</script>\"'&"
    page = server.get(f"{PAGE}/act/table-aside", params={"table": f"a.{nasty}", "reason": nasty, "review": "1"},
                      headers=bearer).text  # fmt: skip
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    words = ACTIONS["table-aside"].build_command({"table": "a.b", "reason": "--output=x"})
    assert "--reason=--output=x" in words
    for field, value in (("table", "--output.x"), ("table", "nodot"), ("reason", "a\x00b"), ("reason", "a\nb")):
        with pytest.raises(InvalidFields):
            ACTIONS["table-aside"].parse({"table": "a.b", field: value})
    for pump in ("--help", "a b", "$(id)", "../x"):
        with pytest.raises(InvalidFields):
            ACTIONS["pump-pause"].parse({"pump": pump})


def test_user_who_may_only_read_sees_what_is_missing_and_does_nothing(
    server: httpx.Client, bearer: dict[str, str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file.is_file()
    manager = get_auth_manager()
    allowed = type(manager).is_authorized_dag

    def read_only(self: Any, *, method: str, **more: Any) -> bool:
        return method == "GET" and allowed(self, method="GET", **more)

    monkeypatch.setattr(type(manager), "is_authorized_dag", read_only)
    assert "Run now" not in server.get(PAGE, headers=bearer).text
    assert "Needs the right to trigger the DAG shop.verify" in server.get(f"{PAGE}/act", headers=bearer).text
    form = server.get(f"{PAGE}/act/verify", params={"review": "1"}, headers=bearer).text
    assert ("You may not do this" in form, "<form method" in form) == (True, False)
    for name in ("verify", "pause", "table-aside"):
        done = server.post(f"{PAGE}/act/{name}", data=TYPED.get(name, {}), headers=bearer)
        assert (done.status_code, "you may not" in done.text) == (403, True)
    assert (read_runs("shop.verify"), read_runs("shop.act"), is_paused("shop"), read_log()) == ([], [], False, [])


def test_right_to_trigger_one_dag_is_enough_for_its_actions_alone(
    server: httpx.Client, bearer: dict[str, str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file.is_file()
    manager = get_auth_manager()

    def verify_only(_: Any, *, method: str, access_entity: Any = None, details: Any = None, **more: Any) -> bool:
        del more
        return method == "GET" or (details.id, getattr(access_entity, "name", "")) == ("shop.verify", "RUN")

    monkeypatch.setattr(type(manager), "is_authorized_dag", verify_only)
    codes = {
        name: server.post(f"{PAGE}/act/{name}", data=TYPED.get(name, {}), headers=bearer, follow_redirects=False)
        for name in ("verify", "repair", "pause", "run", "table-aside", "repair-range")
    }
    assert {name: answer.status_code for name, answer in codes.items()} == {
        "verify": 303, "repair": 303, "pause": 403, "run": 403, "table-aside": 403, "repair-range": 403,
    }  # fmt: skip


@pytest.mark.parametrize("headers", [{"Origin": "https://elsewhere.example"}, {}, {"Sec-Fetch-Site": "cross-site"}],
                         ids=["other origin", "no headers", "cross-site"])  # fmt: skip
def test_another_site_does_nothing_with_the_users_cookie(
    server: httpx.Client, token: str, file: Path, headers: dict[str, str]
) -> None:
    assert file.is_file()
    answer = server.post(f"{PAGE}/act/pause", headers={"Cookie": f"_token={token}", **headers})
    assert (answer.status_code, is_paused("shop")) == (403, False)


def test_acting_requires_a_login(server: httpx.Client, file: Path) -> None:
    assert file.is_file()
    server.cookies.clear()
    assert server.post(f"{PAGE}/act/pause", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 401
    assert server.get(f"{PAGE}/act/pause").status_code == 401


def test_actions_that_a_replication_cannot_have_are_not_there(
    server: httpx.Client, bearer: dict[str, str], folder: Path
) -> None:
    write_replication(folder, "shop", target=None, mirror="enabled = false")
    groups = server.get("/binlake/api/dags/shop/act", headers=bearer).json()["groups"]
    assert ("Feeds" in groups, "Tables" in groups) == (False, False)
    assert server.get(f"{PAGE}/act/verify", headers=bearer).status_code == 404
    assert server.get(f"{PAGE}/act/rm-rf", headers=bearer).status_code == 404


def test_dag_that_airflow_does_not_know_is_named(server: httpx.Client, bearer: dict[str, str], folder: Path) -> None:
    write_replication(folder, "unknown", source='pd-urls = "http://127.0.0.1:1"')
    done = server.post("/binlake/dags/unknown/act/verify", data={"tables": "a.b"}, headers=bearer)
    assert (done.status_code, "Airflow does not know the DAG unknown.verify" in done.text) == (404, True)
    # What was typed is still there.
    assert ">a.b</textarea>" in done.text


def is_paused(dag_id: str) -> bool:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        return bool(session.get_one(DagModel, dag_id).is_paused)
