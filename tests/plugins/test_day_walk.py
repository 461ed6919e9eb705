"""A day of an operator in a real browser, inside Airflow's own server: a problem is seen, the replication resumed, a
DDL replaced, a table verified, a row repaired, two moments compared, a file saved.

What the runs do is tested where the commands are; here a run ends as its DAG's run would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.airflow_dags import register_dag
from support.replication_files import write_replication

from binlake.config import load_replication
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from deploy.local.chromium import BrowserPage, Chromium
from deploy.local.sample_lake import BASE, S, build_sample
from deploy.setup import axe

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

END, DDL, ORDER = BASE + 40 * S, BASE + 25 * S, BASE + 12 * S + 1


@pytest.fixture
def page(tmp_path: Path, server: httpx.Client, token: str) -> Iterator[BrowserPage]:
    with Chromium(tmp_path / "chromium") as browser, browser.open_page() as page:
        page.set_cookie(str(server.base_url), "_token", token)
        yield page


@pytest.fixture
def log(folder: Path) -> WindowLog:
    """The replication `shop` with the sample in its lake; a pump blocks its next window."""
    path = write_replication(folder, "shop", source='pd-urls = "http://127.0.0.1:1"')
    for kind in ("", "verify", "backfill", "act"):
        register_dag(path, paused=False, kind=kind)
    paths = LakePaths.of(load_replication(path, secrets=False))
    build_sample(paths, note="<script>alert(1)</script>")
    log = WindowLog(paths)
    log.record(WindowEvent("plan", END, END, "blocked", 0, 0.1, "r", "", "pump-2", {"reason": "pump-2 is silent"}))
    return log


def heading(page: BrowserPage) -> str:
    return str(page.evaluate("document.querySelector('h1').innerText"))


def require_no_faults(page: BrowserPage) -> None:
    page.evaluate((axe.ROOT / axe.SCRIPT).read_text(encoding="utf-8") + "; true")
    found = json.loads(page.evaluate("axe.run().then(r => JSON.stringify(r.violations))"))
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []


def end_run(page: BrowserPage, note: str, *, waits: bool = False) -> None:
    """The run whose page is shown ends well; if `waits`, the page is left to show it by itself."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    page.wait("document.querySelector('.badge')?.innerText.trim() === 'Queued'")
    with create_session() as session:
        run = session.scalars(select(DagRun).where(DagRun.state == "queued").order_by(DagRun.id.desc())).first()
        assert run is not None
        run.state, run.note = DagRunState.SUCCESS, note
    if not waits:
        page.goto(str(page.evaluate("location.href")))
    page.wait("document.querySelector('.badge')?.innerText.trim() === 'Success'")
    assert note in page.read_visible_text()
    page.follow("The replication")


def confirm(page: BrowserPage, title: str) -> None:
    """The page that says what will happen, then its one button."""
    assert heading(page) == f"{title}?"
    assert "binlake " in page.read_visible_text()
    require_no_faults(page)
    page.follow(title)


def test_day_of_an_operator(page: BrowserPage, server: httpx.Client, log: WindowLog) -> None:
    page.goto(f"{server.base_url}/binlake/")
    assert "Blocked: blocked by pump-2" in page.read_visible_text()
    page.follow("shop")
    # The pump is started again where it ran; the replication, which was held for every scheduler, goes on.
    page.follow("All actions")
    page.follow("Resume for every scheduler")
    confirm(page, "Resume for every scheduler")
    log.record(WindowEvent("plan", END, END, "ready"))
    require_no_faults(page)
    end_run(page, "registry-resume", waits=True)
    assert "blocked by pump-2" not in page.read_visible_text()
    # The statement is there as the DDL would run. Without one the form says so, and the commit_ts is still there.
    page.follow("Replace this DDL")
    statement = "document.querySelector('[name=sql]').value"
    assert page.evaluate(statement) == "ALTER TABLE item ADD COLUMN stock INT"
    page.evaluate(f"{statement} = ''")
    page.follow("Review")
    assert "Statement: is needed." in page.read_visible_text()
    assert page.evaluate("document.querySelector('[name=commit_ts]').value") == str(DDL)
    page.fill("Statement", "ALTER TABLE item ADD COLUMN stock BIGINT")
    page.follow("Review")
    confirm(page, "Replace a DDL")
    end_run(page, "ddl-replace")
    page.follow("Verify")
    page.fill("Tables", "shop.item")
    page.follow("Review")
    confirm(page, "Verify")
    end_run(page, "verify: different at 42, 39 rows compared")
    # One row is wrong: its last transaction is repaired.
    page.goto(f"{server.base_url}/binlake/dags/shop/transaction?ts={ORDER}")
    page.follow("Repair its rows")
    confirm(page, "Repair a range")
    end_run(page, "repair: 3 rows")
    page.follow("Difference")
    page.fill("Table", "shop.item")
    page.fill("From", str(BASE + 10 * S))
    page.follow("Compare")
    assert "1 removed, 1 changed" in page.read_visible_text()
    require_no_faults(page)
    saved = (
        "fetch([...document.querySelectorAll('a')].find(a => a.innerText === 'All as CSV').href).then(r => r.text())"
    )
    assert str(page.evaluate(saved)).splitlines()[0].startswith("key,difference,before.id,after.id")
    page.follow("Actions")
    said = page.read_visible_text()
    commands = ("resume-drainer --node-id binlake-shop", f"ddl replace --commit-ts {DDL}", "verify --table shop.item",
                f"backfill repair --commit-ts {ORDER}")  # fmt: skip
    for command in commands:
        assert f"binlake {command}" in said
    outside = [url for url in page.requests if not url.startswith(str(server.base_url))]
    assert (outside, page.complaints) == ([], [])
