"""Masked columns: whoever may only read the DAG finds no value of them on any page, in any file, by any key."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from support.replication_files import write_replication

from binlake.config.airflow import MaskSection
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake_airflow.pages import web
from deploy.local.sample_lake import BASE, S, build_sample

NASTY = "<script>alert(1)</script>\"'&"
PAGE, API = "/binlake/dags/shop", "/binlake/api/dags/shop"
END = BASE + 40 * S
ORDER = BASE + 12 * S + 1

Look = Callable[..., httpx.Response]


@pytest.mark.parametrize(
    ("pattern", "hidden"),
    [
        ("shop.item.name", {"name"}),
        ("SHOP.Item.NAME", {"name"}),
        ("*.*.na*", {"name", "na[m]e"}),
        ("shop.item.na[m]e", {"na[m]e"}),
        ("shop.it?m.*", {"name", "id", "na[m]e", "a.b"}),
        ("shop.item.a?b", {"a.b"}),
        ("shop.items.name", set()),
        ("hop.item.name", set()),
    ],
)
def test_pattern_is_of_three_names_without_regard_to_case(pattern: str, hidden: set[str]) -> None:
    mask = MaskSection(columns=(pattern,))
    assert mask.find_hidden("shop", "item", ("name", "id", "na[m]e", "a.b")) == hidden
    assert mask.touches("shop", "item") == bool(hidden)


@pytest.mark.parametrize("pattern", ["item.name", "shop.item", "", "a.b.c.d", "shop..name", "shop.item."])
def test_pattern_of_another_form_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"is not `db\.table\.column`"):
        MaskSection(columns=(pattern,))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("lakes")
    paths = LakePaths(str(place / "shop"))
    build_sample(paths, NASTY)
    differs = {"table": "shop.item", "key": '["4"]', "kind": "changed", "columns": ["price"], "number": 1,
               "against": "source", "window": "1-2", "times": 1}  # fmt: skip
    detail = {"errors": 1, "pending": 0, "ignored": 0, "found": 1, "listed": [differs]}
    WindowLog(paths).record(WindowEvent("validate", BASE, END, "done", 1, 0.1, "r", "", "", detail))
    return place


@pytest.fixture
def look(
    folder: Path, lake: Path, server: httpx.Client, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Look:
    """Asks for a path of the replication with these masks, as somebody who may edit the DAG or only read it."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    allowed = SimpleAuthManager.is_authorized_dag

    def ask(path: str, masks: str, *, edits: bool = False, **asked: str) -> httpx.Response:
        write_replication(
            folder,
            "shop",
            lake=f'path = "{lake}"',
            source='pd-urls = "http://127.0.0.1:1"',
            mask=f"columns = [{masks}]",
        )

        def decide(self: SimpleAuthManager, *, method: str, **more: Any) -> bool:
            return (edits or method == "GET") and allowed(self, method=method, **more)

        monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", decide)
        return server.get(path, params=asked, headers=bearer)

    return ask


SPAN = {"table": "shop.item", "from": str(BASE + 10 * S), "to": str(END)}
QUESTIONS: list[tuple[str, dict[str, str]]] = [
    ("/row", {"table": "shop.item", "key": "4"}),
    ("/table", {"table": "shop.item", "at": str(END)}),
    ("/diff", SPAN),
    ("/transaction", {"ts": str(ORDER)}),
]
FILES: list[tuple[str, dict[str, str]]] = [
    (f"/export/{what}.{form}", asked)
    for form in ("csv", "json")
    for what, asked in (
        ("row", {"table": "shop.item", "key": "4"}),
        ("table", {"table": "shop.item", "at": str(END)}),
        ("diff", SPAN),
    )
]


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_db")
@pytest.mark.parametrize(("path", "asked"), [*QUESTIONS, *FILES], ids=lambda one: one if isinstance(one, str) else "")
def test_values_of_masked_columns_are_on_no_page_and_in_no_file(look: Look, path: str, asked: dict[str, str]) -> None:
    """Every column but the key."""
    masks = '"SHOP.*.name", "shop.*.PRICE", "*.*.note", "*.*.what"'
    for base in (PAGE,) if "/export/" in path else (PAGE, API):
        open_text = look(base + path, masks, edits=True, **asked).text
        answer = look(base + path, masks, **asked)
        assert answer.status_code == 200, answer.text
        # Not inside a commit_ts.
        for value in (r"alert\(1\)", r"\b400\b", r"\b900\b", r"item \d"):
            assert not re.search(value, answer.text), (base + path, value)
        assert "•••" in answer.text or "\\u2022" in answer.text
        assert "•••" not in open_text
        assert re.search(r"alert\(1\)|\b900\b", open_text)


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_db")
def test_a_masked_key_is_shown_nowhere_and_no_row_is_looked_up_by_it(look: Look) -> None:
    mask = '"shop.item.id"'
    for path, asked in QUESTIONS[1:3]:
        view = look(API + path, mask, **asked).json()
        assert '["4"]' not in str(view), path
    preview = look(f"{API}/table", mask, table="shop.item", at=str(END)).json()["preview"]
    assert set(preview["keys"]) == {None}
    differences = look(f"{API}/diff", mask, **SPAN).json()["diff"]["rows"]
    assert {(row["key"], row["key_asked"]) for row in differences} == {("•••", None)}
    for path in (f"{PAGE}/row", f"{API}/row", f"{PAGE}/export/row.csv"):
        for key in ("4", "777", "' OR '1'='1"):
            refused = look(path, mask, table="shop.item", key=key)
            assert (refused.status_code, "masked" in refused.text) == (403, True)
        assert look(path, mask, edits=True, table="shop.item", key="4").status_code == 200
    [listed] = look(API, mask).json()["validated"]["listed"]
    assert (listed["key"], listed["table"]) == ("•••", "shop.item")
    assert look(API, mask, edits=True).json()["validated"]["listed"][0]["key"] == '["4"]'
    # Another table's keys are open.
    assert look(f"{API}/row", mask, table="shop.log", key="x").status_code != 403


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_db")
def test_whether_a_masked_column_changed_is_shown(look: Look) -> None:
    versions = look(f"{API}/row", '"shop.item.price"', table="shop.item", key="4").json()["versions"]
    prices = [next(one for one in version["columns"] if one["name"] == "price") for version in versions]
    assert [price["changed"] for price in prices] == [False, True, False]
    assert {(price["masked"], price["after"]) for price in prices} == {(True, "•••")}
    name = next(column for column in versions[0]["columns"] if column["name"] == "name")
    assert (name["masked"], name["after"]) == (False, "item 4")


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_db")
@pytest.mark.parametrize(
    ("masks", "edits", "shown"), [('"*.*.x"', False, False), ('"*.*.x"', True, True), ("", False, True)]
)
def test_answers_of_commands_are_hidden_with_masks(
    look: Look, monkeypatch: pytest.MonkeyPatch, masks: str, edits: bool, shown: bool
) -> None:
    """What a command printed may have values of any column."""
    run = {"name": "shop", "dag_id": "shop.verify", "run_id": "r", "state": "success", "active": False, "who": "",
           "conf": "{}", "queued": "", "began": "", "ended": "", "note": "", "paused": False, "tasks": [],
           "answer": "key 4 price 400", "failure": ""}  # fmt: skip
    monkeypatch.setattr(web, "build_acted_view", lambda *_: run)
    for path in (f"{PAGE}/acts/verify/r", f"{API}/acts/verify/r"):
        text = look(path, masks, edits=edits).text
        assert ("price 400" in text, "hidden, because columns are masked" in text) == (shown, not shown)
