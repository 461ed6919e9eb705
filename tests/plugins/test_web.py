"""The pages inside Airflow's own server: who may see them, their content, no external resources (S0-56, C-04)."""

from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from support.replication_files import write_replication

from binlake.config import load_replication
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

LO, HI = 449_000_000_000_000_001, 449_000_000_000_000_777
RUN = "scheduled__2026-11-21T11:00:00+00:00"
RUN_PATH = f"/binlake/dags/orders/runs/{RUN}"
PATHS = ["/binlake/dags/orders", RUN_PATH, "/binlake/api/dags/orders", f"/binlake/api/dags/orders/runs/{RUN}",
         "/binlake/style.css"]  # fmt: skip


@pytest.fixture
def windows(folder: Path) -> WindowLog:
    """The replication `orders` with one window in its lake."""
    path = write_replication(folder, "orders")
    log = WindowLog(LakePaths.of(load_replication(path, secrets=False)))
    for stage, rows in (("land", 1234), ("merge", 5678)):
        log.record(WindowEvent(stage, LO, HI, "done", rows, 1.5, RUN))
    return log


@pytest.mark.parametrize("path", PATHS)
def test_pages_require_login(server: httpx.Client, windows: WindowLog, path: str) -> None:
    assert windows.find_landed_ts() == HI
    server.cookies.clear()
    assert server.get(path).status_code == 401
    assert server.get(path, headers={"Authorization": "Bearer x.y.z"}).status_code == 403


@pytest.mark.parametrize("path", PATHS)
def test_token_or_session_cookie_opens_a_page(
    server: httpx.Client, windows: WindowLog, token: str, bearer: dict[str, str], path: str
) -> None:
    assert windows.find_landed_ts() == HI
    server.cookies.clear()
    assert server.get(path, headers=bearer).status_code == 200
    # The iframe of an external view sends only the cookie.
    assert server.get(path, headers={"Cookie": f"_token={token}"}).status_code == 200


def test_run_page_shows_window_rows_and_seconds(
    server: httpx.Client, windows: WindowLog, bearer: dict[str, str]
) -> None:
    assert windows.find_landed_ts() == HI
    page = server.get(RUN_PATH, headers=bearer).text
    for text in (str(LO), str(HI), "1,234", "5,678", "1.50", "3.00", "<caption>", 'lang="en"', "2024-"):
        assert text in page
    assert 'href="/binlake/dags/orders"' in page
    assert str(HI) in server.get(quote(RUN_PATH), headers=bearer).text


def test_timestamps_are_exact_text_in_json(server: httpx.Client, windows: WindowLog, bearer: dict[str, str]) -> None:
    # R-46
    assert windows.find_landed_ts() == HI
    view = server.get("/binlake/api/dags/orders", headers=bearer).json()
    assert view["landed"]["commit_ts"] == str(HI)
    run = server.get(f"/binlake/api/dags/orders/runs/{RUN}", headers=bearer).json()
    assert {row["hi"]["commit_ts"] for row in run["stages"]} == {str(HI)}


def test_replication_page_names_the_blocking_pump(
    server: httpx.Client, windows: WindowLog, bearer: dict[str, str]
) -> None:
    # S0-56
    why = {"reason": f"pump-2 since {HI}"}
    windows.record(WindowEvent("plan", HI, HI, "blocked", 0, 0.1, "r2", blocked_by="pump-2 <b>", detail=why))
    for path in ("/binlake/dags/orders", "/binlake/dags/orders/runs/r2"):
        page = server.get(path, headers=bearer).text
        assert "pump-2 &lt;b&gt;" in page
        assert f"pump-2 since {HI}" in page
        assert "<b>" not in page


def test_shown_values_are_escaped(server: httpx.Client, windows: WindowLog, bearer: dict[str, str]) -> None:
    assert windows.find_landed_ts() == HI
    page = server.get(f"/binlake/dags/orders/runs/{quote('<script>alert(1)</script>')}", headers=bearer).text
    assert page.count("<script") == page.count('<script src="/binlake/page.js">') == 1
    assert "&lt;script&gt;" in page


def test_pages_load_nothing_external_and_are_framed_only_by_airflow(
    server: httpx.Client, windows: WindowLog, bearer: dict[str, str]
) -> None:
    assert windows.find_landed_ts() == HI
    answer = server.get(RUN_PATH, headers=bearer)
    policy = answer.headers["Content-Security-Policy"]
    assert "frame-ancestors 'self'" in policy
    assert "default-src 'none'" in policy
    assert "://" not in answer.text


def test_dag_that_is_not_a_replication_is_not_found(server: httpx.Client, folder: Path, bearer: dict[str, str]) -> None:
    assert list(folder.iterdir()) == []
    assert server.get("/binlake/dags/other", headers=bearer).status_code == 404
    assert server.get("/binlake/dags/..%2f..%2fetc", headers=bearer).status_code == 404


def test_ui_knows_where_to_show_the_pages(server: httpx.Client, bearer: dict[str, str]) -> None:
    plugins = server.get("/api/v2/plugins", headers=bearer).json()["plugins"]
    views = {v["destination"]: v["href"] for p in plugins if p["name"] == "binlake" for v in p["external_views"]}
    assert views == {
        "nav": "/binlake/",
        "dag": "/binlake/dags/{DAG_ID}",
        "dag_run": "/binlake/dags/{DAG_ID}/runs/{RUN_ID}",
    }
    errors = server.get("/api/v2/plugins/importErrors", headers=bearer).json()
    assert errors["total_entries"] == 0, errors


@pytest.mark.parametrize("bad", [449000000000000001, "449e3", "-1", "", 1.5])
def test_timestamp_that_is_not_decimal_text_is_refused(
    server: httpx.Client, known_dag: str, bearer: dict[str, str], bad: object
) -> None:
    # C-04: an integer above 2^53 has already lost its last digits when it arrives.
    body = {"logical_date": None, "conf": {"stop_ts": bad}}
    answer = server.post(f"/api/v2/dags/{known_dag}/dagRuns", headers=bearer, json=body)
    assert answer.status_code == 400
    assert "stop_ts" in answer.text


def test_range_given_as_text_starts_a_run(server: httpx.Client, known_dag: str, bearer: dict[str, str]) -> None:
    # C-04
    conf = {"start_ts": str(LO), "stop_ts": str(HI)}
    body = {"logical_date": None, "conf": conf}
    answer = server.post(f"/api/v2/dags/{known_dag}/dagRuns", headers=bearer, json=body)
    assert answer.status_code == 200
    assert answer.json()["conf"] == conf
