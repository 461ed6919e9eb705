"""The page of promises is complete, and claims only what tests check."""

from __future__ import annotations

from pathlib import Path

from deploy import promises

_U = "U-"  # Assembled here, because lint would read these lines as citations.
PAGE = f"""# Promises

| Part | Ids | Subject |
|---|---|---|
| DESIGN | DESIGN 3.1 to 3.2 | invariants |
| U | {_U}01 to {_U}04 | wishes |

## Invariants

| Id | Rule |
|---|---|
| DESIGN 3.1 | one |
| DESIGN 3.2 | two |

## Wishes

| Id | Promise |
|---|---|
| {_U}01 | first |
| {_U}02 | second |

## Not built yet

| Id | What | Issue |
|---|---|---|
| {_U}04 | fourth | 17 |
"""
CITED = {"DESIGN 3.1", "DESIGN 3.2", f"{_U}01", f"{_U}02"}


def test_missing_duplicate_and_untested_promises_are_named() -> None:
    page = promises.read_page(PAGE)
    assert page.kept == ("DESIGN 3.1", "DESIGN 3.2", f"{_U}01", f"{_U}02")
    assert page.untested == (f"{_U}04",)
    assert promises.find_problems(page, CITED) == [f"{_U}03: left out"]
    whole = promises.read_page(PAGE + f"| {_U}03 | third | 18 |\n")
    assert promises.find_problems(whole, CITED) == []
    assert promises.find_problems(whole, CITED - {f"{_U}02"}) == [f"{_U}02: no test cites it"]
    assert promises.find_problems(whole, CITED | {f"{_U}03"}) == [
        f"{_U}03: a test cites it, but it is listed as untested",
    ]
    twice = promises.read_page(PAGE + f"| {_U}03 | third | 18 |\n| {_U}01 | first | 18 |\n")
    assert f"{_U}01: listed 2 times" in promises.find_problems(twice, CITED)


def test_range_stands_for_each_of_its_ids(tmp_path: Path) -> None:
    file = tmp_path / "test_a.py"
    file.write_text(f"# {_U}08 to {_U}10, DESIGN 3.9 to 3.11\n")
    assert promises.read_cited_ids([file]) == {
        f"{_U}08",
        f"{_U}09",
        f"{_U}10",
        "DESIGN 3.9",
        "DESIGN 3.10",
        "DESIGN 3.11",
    }


def test_mission_id_missing_on_the_page_is_named() -> None:
    page = promises.read_page(PAGE)
    assert promises.find_missing(f"{_U}01 and {_U}09", page) == [f"{_U}09"]
    assert promises.find_missing(f"{_U}04, and the hazard R-" + "99", page) == []
