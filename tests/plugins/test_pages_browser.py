"""The pages in a real browser, inside Airflow's own server: navigation by links and forms, both colour schemes, no
fault that axe-core calls serious, no request to another host (C-04, C-07, R-46).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.replication_files import write_replication

from binlake.config import load_replication
from binlake.feed.registry import SchemaRefused
from binlake.feed.state import read_state, record_feed_error
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from deploy.local.chromium import BrowserPage, Chromium
from deploy.local.sample_lake import BASE, build_sample
from deploy.setup import axe

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

ORDER = BASE + 12 * (1000 << 18) + 1
SOURCE = 'pd-urls = "http://127.0.0.1:1"'
RUN = "scheduled__2026-11-20T10:01:00+00:00"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(chromium: Chromium, server: httpx.Client, token: str) -> Iterator[BrowserPage]:
    """A page of a logged-in user."""
    with chromium.open_page() as page:
        page.set_cookie(str(server.base_url), "_token", token)
        yield page


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The section [lake] of a replication `shop` with the sample in its lake, which tests only read."""
    folder = tmp_path_factory.mktemp("shop")
    path = write_replication(folder, "shop", source=SOURCE)
    build_sample(LakePaths.of(load_replication(path, secrets=False)), note="<script>alert(1)</script>")
    return f'path = "{folder / "lake"}"'


@pytest.fixture
def shop(folder: Path, lake: str) -> str:
    """The replication `shop` with its lake."""
    write_replication(folder, "shop", source=SOURCE, lake=lake)
    return "shop"


def heading(page: BrowserPage) -> str:
    return str(page.evaluate("document.querySelector('h1').innerText"))


def faults(page: BrowserPage) -> list[str]:
    """The faults that axe-core calls serious or critical."""
    page.evaluate((axe.ROOT / axe.SCRIPT).read_text(encoding="utf-8") + "; true")
    found = page.evaluate("axe.run().then(r => JSON.stringify(r.violations))")
    return [
        f"{one['id']}: {[node['html'] for node in one['nodes']]}"
        for one in json.loads(found)
        if one["impact"] in ("serious", "critical")
    ]


def test_links_lead_from_the_overview_to_the_run_that_applied_a_row(
    page: BrowserPage, server: httpx.Client, shop: str
) -> None:
    page.goto(f"{server.base_url}/binlake/")
    assert faults(page) == []
    page.follow(shop)
    assert heading(page) == "Replication shop"
    assert faults(page) == []
    page.follow("Row history")
    page.fill("Table", "shop.item")
    page.follow("Choose")
    page.fill("id", "4")
    page.follow("Show its history")
    assert heading(page) == 'Row history: shop.item ["4"]'
    assert "3 changes" in page.read_visible_text()
    assert faults(page) == []
    page.evaluate("document.querySelectorAll('.versions tbody tr')[1].querySelector('a').id = 'second'; true")
    page.evaluate("document.getElementById('second').textContent = 'The second one'; true")
    page.follow("The second one")
    assert heading(page) == f"Transaction {ORDER}"
    assert "1 to 3 of 3" in page.read_visible_text()
    assert faults(page) == []
    page.follow(RUN)
    assert heading(page) == f"Window of run {RUN}"
    assert faults(page) == []
    outside = [url for url in page.requests if not url.startswith(str(server.base_url))]
    assert (outside, page.complaints) == ([], [])


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_table_as_of_a_time_in_both_colour_schemes(
    page: BrowserPage, server: httpx.Client, shop: str, scheme: str, dark: bool
) -> None:
    page.set_scheme(scheme)  # type: ignore[arg-type]
    page.goto(f"{server.base_url}/binlake/dags/{shop}/table")
    page.fill("Table", "shop.item")
    page.fill("As of", str(BASE + 40 * (1000 << 18)))
    page.follow("Show rows")
    assert "<script>alert(1)</script>" in page.read_visible_text()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128")
    assert light is not dark
    assert faults(page) == []


def test_keyboard_alone_is_enough_to_get_an_answer(page: BrowserPage, server: httpx.Client, shop: str) -> None:
    page.goto(f"{server.base_url}/binlake/dags/{shop}/transaction")
    page.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    while page.evaluate("document.activeElement.id") != "ts":
        page.press("Tab")
        assert page.evaluate("document.activeElement.matches(':focus-visible')")
    page.call("Input.insertText", text=str(ORDER))
    page._act_and_wait_for_load(lambda: page.press("Enter"))
    assert heading(page) == f"Transaction {ORDER}"


def test_page_is_shown_in_airflows_own_frame(page: BrowserPage, server: httpx.Client, shop: str) -> None:
    page.goto(f"{server.base_url}/plugin/binlake")
    inside = "document.querySelector('iframe')?.contentDocument"
    page.wait(f"{inside}?.querySelector('h1')?.innerText === 'Replications'")
    page.evaluate(f"[...{inside}.querySelectorAll('a')].find(a => a.innerText === '{shop}').click()")
    page.wait(f"{inside}?.querySelector('h1')?.innerText === 'Replication {shop}'")
    # If the frame could not load the style sheet, the browser's default margin would remain.
    page.wait(f"getComputedStyle({inside}.body).margin === '0px'")


def test_commit_ts_typed_into_the_trigger_form_stays_exact(
    page: BrowserPage, server: httpx.Client, bearer: dict[str, str], known_dag: str
) -> None:
    # C-04 R-46: JavaScript would turn the number into 470583292723200000.
    typed = {"start_ts": "470583292723200001", "stop_ts": "470583292723200077"}
    page.goto(f"{server.base_url}/dags/{known_dag}")
    page.wait("!!document.querySelector('button[aria-label=\"Trigger Dag\"]')")
    page.evaluate("document.querySelector('button[aria-label=\"Trigger Dag\"]').click()")
    for name, value in typed.items():
        page.wait(f"!!document.querySelector('[name=element_{name}]')")
        page.evaluate(f"(e => {{ e.focus(); e.select() }})(document.querySelector('[name=element_{name}]'))")
        page.call("Input.insertText", text=value)
    known = runs(server, bearer, known_dag)
    trigger = "[...document.querySelectorAll('[role=dialog] button')].find(b => b.textContent.trim() === 'Trigger')"
    page.wait(f"!!{trigger} && !{trigger}.disabled")
    page.evaluate(f"{trigger}.click()")
    # The dialog closes when the server has answered.
    page.wait("!document.querySelector('[name=element_start_ts]')")
    started = [run for name, run in runs(server, bearer, known_dag).items() if name not in known]
    assert [{name: run["conf"][name] for name in typed} for run in started] == [typed]


def runs(server: httpx.Client, bearer: dict[str, str], dag_id: str) -> dict[str, Any]:
    """The DAG's runs by id."""
    found = server.get(f"/api/v2/dags/{dag_id}/dagRuns", headers=bearer).json()["dag_runs"]
    return {run["dag_run_id"]: run for run in found}


def write_feeds(folder: Path) -> WindowLog:
    """Write the replication `shop` with the feeds a and b, and return its log."""
    uri = "kafka://127.0.0.1:1/t?protocol=avro"
    feeds = [f'name = "{name}"\nsink-uri = "{uri}"\nschema-registry = "http://127.0.0.1:1"' for name in ("a", "b")]
    path = write_replication(folder, "shop", source=SOURCE, feeds=feeds)
    paths = LakePaths.of(load_replication(path, secrets=False))
    build_sample(paths, note="")
    return WindowLog(paths)


def test_feed_in_error_is_resumed_by_its_button(page: BrowserPage, server: httpx.Client, folder: Path) -> None:
    # S2-39; the browser itself sends the form's origin.
    log = write_feeds(folder)
    record_feed_error(log, "b", "publish", SchemaRefused("409 incompatible", hint="ask its owner"), run_id="r1")
    page.goto(f"{server.base_url}/binlake/dags/shop")
    assert faults(page) == []
    assert "409 incompatible" in page.read_visible_text()
    page.follow("Resume the feed b")
    assert heading(page) == "Resume a feed?"
    assert faults(page) == []
    page.follow("Resume a feed")
    assert heading(page) == "Replication shop"
    assert "409" not in str(page.evaluate("document.querySelector('section[aria-label=\"Feed b\"]').innerText"))
    assert read_state(log, "b").state == "normal"
    assert faults(page) == []


@pytest.mark.soak
def test_feed_is_stopped_by_its_button_in_airflows_own_frame(
    page: BrowserPage, server: httpx.Client, folder: Path
) -> None:
    log = write_feeds(folder)
    inside = "document.querySelector('iframe')?.contentDocument"
    feed = f"{inside}?.querySelector('section[aria-label=\"Feed a\"]')"
    page.goto(f"{server.base_url}/plugin/binlake")
    page.wait(f"{inside}?.querySelector('h1')?.innerText === 'Replications'")
    page.evaluate(f"[...{inside}.querySelectorAll('a')].find(a => a.innerText === 'shop').click()")
    page.wait(f"!!{feed}?.querySelector('a.do')")
    page.evaluate(f"{feed}.querySelector('a.do').click()")
    page.wait(f"!!{inside}?.querySelector('form.confirm button')")
    page.evaluate(f"{inside}.querySelector('form.confirm button').click()")
    page.wait(f"!!{feed}?.querySelector('dd').innerText.startsWith('stopped')")
    assert read_state(log, "a").state == "stopped"


def record_window(log: WindowLog, number: int, rows: int) -> None:
    """A further window of the sample that lands and is applied."""
    hi = BASE + (40 + 10 * number) * (1000 << 18)
    for stage, sink in (("land", ""), ("finalize", "sql")):
        log.record(WindowEvent(stage, hi - 10 * (1000 << 18), hi, "done", rows, 0.5, "r", sink))


def test_page_shows_a_new_window_without_a_reload_while_it_is_seen(
    page: BrowserPage, server: httpx.Client, folder: Path
) -> None:
    log = write_feeds(folder)
    page.goto(f"{server.base_url}/binlake/dags/shop")
    page.evaluate("window.stays = true")
    page.evaluate("document.querySelector('#lag-numbers').open = true")
    record_window(log, 1, 1234)
    page.wait("document.querySelector('[data-part=state]').innerText.includes('1,234 rows')")
    # What the reader had opened stays open, and nothing was reloaded.
    assert page.evaluate("window.stays && document.querySelector('#lag-numbers').open")
    page.evaluate("document.querySelector('.live').click()")
    assert page.evaluate("document.querySelector('.live').innerText.trim()") == "Updates paused"
    asked = len(page.requests)
    page.evaluate("new Promise((done) => setTimeout(done, 7000))")
    assert len(page.requests) == asked
    # A hidden page asks for nothing either.
    hide = "Object.defineProperty(document, 'hidden', {value: true, configurable: true})"
    page.evaluate(f"{hide}; document.querySelector('.live').click()")
    page.evaluate("new Promise((done) => setTimeout(done, 2000))")
    assert len(page.requests) == asked
    assert page.complaints == []


@pytest.mark.parametrize("width", [390, pytest.param(2560, marks=pytest.mark.soak)])
def test_no_page_is_wider_than_the_screen(page: BrowserPage, server: httpx.Client, shop: str, width: int) -> None:
    page.set_size(width, 900)
    page.set_scheme("dark" if width == 390 else "light")
    below = (
        "", "/row?table=shop.item&key=4", f"/transaction?ts={ORDER}", "/table?table=shop.item", "/ddl",
        f"/runs/{RUN}", f"/diff?table=shop.item&from={BASE}", "/act", "/act/verify?tables=shop",
        f"/act/rollback?commit_ts={ORDER}&review=1", "/tables", "/tables?q=item",
    )  # fmt: skip
    for path in ("", *(f"dags/{shop}{place}" for place in below)):
        page.goto(f"{server.base_url}/binlake/{path}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        cut = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        assert width != 390 or page.evaluate(cut) == 0, path
        assert faults(page) == [], path


def drag(page: BrowserPage, chart: str, start: float, end: float) -> None:
    """Drag on a chart, between two shares of its width."""
    script = f"JSON.stringify(document.querySelector('[aria-label={chart}] .plot').getBoundingClientRect())"
    page.evaluate(f"document.querySelector('[aria-label={chart}]').scrollIntoView()")
    box = json.loads(str(page.evaluate(script)))
    y = box["y"] + box["height"] / 2
    for kind, share in (("mousePressed", start), ("mouseMoved", (start + end) / 2), ("mouseMoved", end),
                        ("mouseReleased", end)):  # fmt: skip
        page.call("Input.dispatchMouseEvent", type=kind, x=box["x"] + share * box["width"], y=y, button="left",
                  buttons=0 if kind == "mouseReleased" else 1, clickCount=1)  # fmt: skip


def test_range_dragged_on_a_chart_fills_the_form_of_an_action(
    page: BrowserPage, server: httpx.Client, shop: str
) -> None:
    page.goto(f"{server.base_url}/binlake/dags/{shop}")
    hidden = "document.querySelector('.picked').hidden"
    assert page.evaluate(hidden)
    # Windows at known places of the chart, with bounds that a number would round.
    windows = [(10 * n, 10 * (n + 1), BASE + 10 * n + 1, BASE + 10 * (n + 1) + 1) for n in range(10)]
    text = ";".join(" ".join(map(str, one)) for one in windows)
    page.evaluate(
        f"document.querySelector('[data-windows]').dataset.windows = '{text}';"
        "document.querySelectorAll('[data-span]').forEach((one) => one.dataset.span = '0 100')"
    )
    drag(page, "Lag", 0.62, 0.35)
    assert not page.evaluate(hidden)
    said = "document.querySelector('.picked strong').innerText"
    assert str(page.evaluate(said)).startswith("4 windows: commits after 2026-11-20 00:00:00 up to")
    assert page.evaluate("document.querySelectorAll('.band').length") == 1
    assert faults(page) == []
    # The picked range is not lost to news, until it is dropped.
    page.evaluate("document.querySelector('[data-part=charts]').stays = true")
    drag(page, "Lag", 0.2, 0.2)
    assert not page.evaluate(hidden)
    page.follow("Undo the picked range")
    assert heading(page) == "Undo a range"
    fields = [str(page.evaluate(f"document.querySelector('[name={name}]').value")) for name in ("from", "to")]
    assert fields == [str(BASE + 31), str(BASE + 71)]
    page.goto(f"{server.base_url}/binlake/dags/{shop}")
    drag(page, "Lag", 0.0, 1.0)
    page.wait(f"!{hidden}")
    page.evaluate("document.querySelector('[data-drop]').click()")
    assert page.evaluate(f"{hidden} && !document.querySelector('.band')")
    assert page.complaints == []


def press(page: BrowserPage, key: str, *, shift: bool = False) -> None:
    """Press a key as a person does, in what has the focus."""
    for kind in ("rawKeyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0)


def test_range_is_picked_and_dropped_by_keys_and_said(page: BrowserPage, server: httpx.Client, shop: str) -> None:
    page.goto(f"{server.base_url}/binlake/dags/{shop}")
    windows = [(10 * n, 10 * (n + 1), BASE + 10 * n + 1, BASE + 10 * (n + 1) + 1) for n in range(30)]
    text = ";".join(" ".join(map(str, one)) for one in windows)
    page.evaluate(
        f"document.querySelector('[data-windows]').dataset.windows = '{text}';"
        "document.querySelectorAll('[data-span]').forEach((one) => one.dataset.span = '0 300');"
        "document.querySelector('[aria-label=Lag] [role=slider]').focus()"
    )
    said = "document.activeElement.getAttribute('aria-valuetext')"

    def find_bounds() -> list[int]:
        link = str(page.evaluate("document.querySelector('[data-range]').href"))
        return [(int(part.partition("=")[2]) - BASE - 1) // 10 for part in link.partition("?")[2].split("&")]

    assert page.evaluate(said) == "no range is picked"
    # The slider lies over its chart, and does not move it.
    boxes = [
        json.loads(
            str(
                page.evaluate(
                    f"JSON.stringify(document.querySelector('[aria-label=Lag] {part}').getBoundingClientRect())"
                )
            )
        )
        for part in (".plot", ".keys", ".axis")
    ]
    assert [boxes[0][side] for side in ("x", "y", "width", "height")] == pytest.approx(
        [boxes[1][side] for side in ("x", "y", "width", "height")]
    )
    assert (boxes[2]["y"], boxes[2]["right"]) == pytest.approx((boxes[0]["y"], boxes[0]["x"]))
    for key, shift, picked in (
        ("ArrowLeft", False, [29, 30]), ("ArrowLeft", False, [28, 29]), ("ArrowLeft", True, [27, 29]),
        ("ArrowLeft", True, [26, 29]), ("ArrowRight", True, [27, 29]), ("PageDown", True, [17, 29]),
        ("ArrowRight", False, [18, 19]), ("Home", True, [0, 19]), ("End", False, [29, 30]),
        ("ArrowRight", False, [29, 30]), ("ArrowLeft", True, [28, 30]),
    ):  # fmt: skip
        press(page, key, shift=shift)
        assert find_bounds() == picked, key
    assert str(page.evaluate(said)).startswith("2 windows: commits after 2026-11-20 00:00:00 up to")
    assert page.evaluate(said) == page.evaluate("document.querySelector('.picked[role=status] strong').innerText")
    assert faults(page) == []
    press(page, "Escape")
    assert page.evaluate("document.querySelector('.picked').hidden && !document.querySelector('.band')")
    assert page.evaluate(said) == "no range is picked"
    press(page, "ArrowLeft")
    press(page, "Enter")
    assert str(page.evaluate("document.activeElement.innerText")).split() == ["Repair", "the", "picked", "range"]
    assert page.complaints == []


def test_page_in_a_frame_follows_the_theme_around_it(page: BrowserPage, server: httpx.Client, shop: str) -> None:
    assert shop
    page.goto(f"{server.base_url}/plugin/binlake")
    inside = "document.querySelector('iframe')?.contentDocument"
    page.wait(f"{inside}?.querySelector('h1')?.innerText === 'Replications'")
    color = f"getComputedStyle({inside}.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128"
    for theme, light in (("dark", False), ("light", True)):
        page.evaluate(
            f"(e => {{ e.classList.remove('light', 'dark'); e.classList.add('{theme}') }})(document.documentElement)"
        )
        page.wait(f"({color}) === {str(light).lower()}")


def test_click_on_a_lag_copies_its_commit_ts(page: BrowserPage, server: httpx.Client, shop: str) -> None:
    page.goto(f"{server.base_url}/binlake/dags/{shop}")
    page.evaluate("document.querySelector('.tiles .lag .copy').click()")
    page.wait("document.querySelector('.tiles .lag .copy').dataset.copied")
    copied = str(page.evaluate("document.querySelector('.tiles .lag .copy').dataset.copied"))
    assert copied == f"copied {BASE + 40 * (1000 << 18)}"
