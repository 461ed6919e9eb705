"""Feeds on the replication's page inside Airflow's own server: what is shown, and who may pause or resume one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.api_fastapi.app import get_auth_manager
from support.replication_files import write_replication

from binlake.config import load_replication
from binlake.errors import Transient
from binlake.feed.registry import SchemaRefused
from binlake.feed.state import read_state, record_feed_error, record_removal, record_resume
from binlake.health import positions
from binlake.lake.failures import record_failure
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import name_feed_sink
from deploy.local.ports import free_port

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

LO, HI = 449_000_000_000_000_001, 449_000_000_000_000_777
PASSWORD = "s3cret-of-the-feed"
PAGE = "/binlake/dags/shop"
POST = "/binlake/api/dags/shop/feeds/orders/"
Ask = Callable[[], dict[str, Any]]


def section(name: str) -> str:
    uri = f"kafka://u:{PASSWORD}@127.0.0.1:{free_port()}/t?protocol=avro&sasl-password={PASSWORD}"
    registry = f"http://u:{PASSWORD}@127.0.0.1:{free_port()}"
    return f'name = "{name}"\nsink-uri = "{uri}"\nschema-registry = "{registry}"'


@pytest.fixture
def log(folder: Path) -> WindowLog:
    """The replication `shop` with two feeds; the registry of `orders` has refused a schema."""
    path = write_replication(
        folder, "shop", feeds=[section("orders"), section("audit")], target=None, mirror="enabled = false"
    )
    log = WindowLog(LakePaths.of(load_replication(path, secrets=False)))
    for stage in ("land", "merge"):
        log.record(WindowEvent(stage, LO, HI, "done", 5, 1.0, "r1"))
    for name in ("orders", "audit"):
        log.record(WindowEvent("encode", LO, HI, "done", 5, 1.0, "r1", name_feed_sink(name)))
    log.record(
        WindowEvent("publish", LO, HI, "done", 5, 1.0, "r1", name_feed_sink("audit"), detail={"topics": ["shop_item"]})
    )
    refused = SchemaRefused(
        "409 incompatible <b>", where={"subject": "shop_item-value"}, hint="ask the registry's owner"
    )
    record_failure(log, "publish", refused, run_id="r1", window=(LO, HI), sink=name_feed_sink("orders"))
    record_feed_error(log, "orders", "publish", refused, run_id="r1")
    return log


@pytest.fixture
def ask(server: httpx.Client, bearer: dict[str, str], log: WindowLog) -> Ask:
    """Fetch the page as JSON."""
    assert log.exists()

    def ask() -> dict[str, Any]:
        return dict(server.get("/binlake/api/dags/shop", headers=bearer).json())

    return ask


def test_feed_in_error_is_named_and_stops_nothing_else(server: httpx.Client, bearer: dict[str, str], ask: Ask) -> None:
    # S2-39, R-46
    view = ask()
    orders, audit = view["feeds"]
    assert (orders["state"], audit["state"]) == ("error", "normal")
    assert orders["error"]["text"] == "409 incompatible <b>"
    assert orders["error"]["where"] == {"subject": "shop_item-value"}
    assert orders["position"] is None
    assert orders["encoded"]["commit_ts"] == audit["position"]["commit_ts"] == str(HI)
    assert audit["topics"] == ["shop_item"]
    assert view["sinks"]["feed.audit"]["commit_ts"] == str(HI)
    assert view["stages"] == [
        "plan",
        "land",
        "merge",
        "encode-orders",
        "publish-orders",
        "encode-audit",
        "publish-audit",
    ]
    assert set(view["windows"][0]["stages"]) == {"land", "merge", "encode-orders", "encode-audit", "publish-audit"}
    # A feed's error asks for attention; an error that stops everything is more severe.
    own = [one for one in view["problems"] if "the feed" in one["text"]]
    assert {one["state"] for one in own} == {"attention"}
    (error,) = (one for one in own if "in state error" in one["text"])
    assert (error["run_id"], "ask the registry's owner" in error["text"]) == ("r1", True)
    page = server.get(PAGE, headers=bearer).text
    assert "409 incompatible &lt;b&gt;" in page
    assert PASSWORD not in page + str(view)
    # Neither feed has dispatcher rules, so no rule may be shown.
    assert "<dt>Topics</dt><dd>the protocol&#39;s own; lately <code>shop_item</code></dd>" in page.replace("'", "&#39;")
    run = server.get("/binlake/api/dags/shop/runs/r1", headers=bearer).json()
    assert [row["task"] for row in run["stages"]][2:] == [
        "encode-orders",
        "encode-audit",
        "publish-audit",
        "publish-orders",
    ]


def test_unreachable_servers_of_a_feed_are_named(ask: Ask) -> None:
    view = ask()
    assert view["reach"]["feed.orders brokers"] is False
    texts = [one["text"] for one in view["problems"]]
    assert any(text.startswith("nothing listens at the brokers of the feed orders: 127.0.0.1:") for text in texts)
    assert any(
        text.startswith("nothing listens at the schema registry of the feed audit: 127.0.0.1:") for text in texts
    )


def test_resume_and_pause_are_recorded_once_with_the_user(
    server: httpx.Client, bearer: dict[str, str], ask: Ask, log: WindowLog
) -> None:
    act = f"{PAGE}/act/feed-resume"
    assert f"{act}?review=1&amp;feed=orders" in server.get(PAGE, headers=bearer).text
    done = server.post(act, data={"feed": "orders"}, headers=bearer, follow_redirects=False)
    assert (done.status_code, done.headers["location"]) == (303, PAGE)
    state = read_state(log, "orders")
    assert (state.state, state.reason) == ("normal", "resume by admin, on the page")
    assert not [one for one in ask()["problems"] if "state error" in one["text"] or "409" in one["text"]]
    once_more = server.post(act, data={"feed": "orders"}, headers=bearer)
    assert (once_more.status_code, 'value="orders"' in once_more.text) == (409, True)
    again = server.post(POST + "resume", headers=bearer)
    assert (again.status_code, "state normal" in again.json()["error"]) == (409, True)
    paused = server.post(POST + "pause", headers=bearer)
    assert (paused.status_code, paused.json()["state"], paused.json()["actions"]) == (200, "stopped", ["resume"])
    view = ask()
    assert any(one["text"].startswith("the feed orders is stopped until it is resumed") for one in view["problems"])
    # The notices name the user.
    told = [one["what"] for one in view["notices"]]
    assert told == ["feed orders stopped", "feed orders normal", "feed orders error"]
    assert "pause by admin, on the page" in view["notices"][0]["text"]
    assert read_state(log, "audit").state == "normal"
    assert server.post(POST + "remove", headers=bearer).status_code == 409
    assert server.post(POST.replace("orders", "nobody") + "resume", headers=bearer).status_code == 404


def test_transient_failure_is_shown_until_the_feed_continues(ask: Ask, log: WindowLog) -> None:
    record_failure(log, "publish", Transient("no broker answers"), run_id="r2", sink=name_feed_sink("audit"))
    assert ask()["feeds"][1]["failure"]["text"] == "publish-audit failed: Transient: no broker answers"
    log.record(WindowEvent("publish", HI, HI + 5, "done", sink=name_feed_sink("audit")))
    assert ask()["feeds"][1]["failure"] is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {},
        {"Sec-Fetch-Site": "cross-site", "Origin": "own"},
        {"Sec-Fetch-Site": "same-site"},
        {"Authorization": "Basic dTpw"},
    ],
    ids=["other origin", "null origin", "no headers", "cross-site with own origin", "same-site", "basic authorization"],
)
def test_another_site_changes_nothing_with_the_users_cookie(
    server: httpx.Client, token: str, log: WindowLog, headers: dict[str, str]
) -> None:
    own = str(server.base_url).rstrip("/")
    asked = {name: own if value == "own" else value for name, value in headers.items()}
    answer = server.post(POST + "resume", headers={"Cookie": f"_token={token}", **asked})
    assert answer.status_code == 403
    assert read_state(log, "orders").state == "error"


@pytest.mark.parametrize(
    "browser", [{"Origin": "own"}, {"Sec-Fetch-Site": "same-origin"}], ids=["own origin", "same-origin"]
)
def test_pages_own_form_changes_a_feed(
    server: httpx.Client, token: str, log: WindowLog, browser: dict[str, str]
) -> None:
    asked = {name: value.replace("own", str(server.base_url).rstrip("/")) for name, value in browser.items()}
    if "Sec-Fetch-Site" in browser:
        asked = browser
    answer = server.post(POST + "resume", headers={"Cookie": f"_token={token}", **asked})
    assert answer.status_code == 200
    assert read_state(log, "orders").state == "normal"


def test_read_only_user_sees_no_button_and_changes_nothing(
    server: httpx.Client, bearer: dict[str, str], log: WindowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "act/feed-resume" in server.get(PAGE, headers=bearer).text
    manager = get_auth_manager()
    allowed = type(manager).is_authorized_dag
    asked: list[str] = []

    def read_only(self: Any, *, method: str, **more: Any) -> bool:
        asked.append(method)
        return method == "GET" and allowed(self, method="GET", **more)

    monkeypatch.setattr(type(manager), "is_authorized_dag", read_only)
    assert "act/feed-resume" not in server.get(PAGE, headers=bearer).text
    assert server.post(POST + "resume", headers=bearer).status_code == 403
    assert "PUT" in asked
    assert read_state(log, "orders").state == "error"


def test_changing_a_feed_requires_login(server: httpx.Client, log: WindowLog) -> None:
    server.cookies.clear()
    assert server.post(POST + "resume", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 401
    assert server.get(POST + "resume").status_code in (401, 405)
    assert read_state(log, "orders").state == "error"


def test_feed_far_behind_the_others_has_its_own_position(log: WindowLog, ask: Ask) -> None:
    record_removal(log, "orders")
    record_resume(log, "orders")
    for number in range(positions.PUBLISHED_WINDOWS * 2 + 1):
        lo = HI + number * 10
        log.record(WindowEvent("publish", lo, lo + 10, "done", sink=name_feed_sink("orders")))
    orders, audit = ask()["feeds"]
    assert (orders["position"]["commit_ts"], audit["position"]["commit_ts"]) == (str(lo + 10), str(HI))
    # A removed feed that was created again starts anew.
    record_removal(log, "orders")
    record_resume(log, "orders")
    assert ask()["feeds"][0]["position"] is None
