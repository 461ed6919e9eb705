"""The page of a difference, a row's history by column and time, and files of both, in Airflow's own server."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import httpx
import pytest
from support.replication_files import write_replication

from binlake.lake.paths import LakePaths
from binlake_airflow.pages import diffs, exports
from deploy.local.sample_lake import BASE, S, build_sample

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db", "shop")]

PAGE, API = "/binlake/dags/shop", "/binlake/api/dags/shop"
NASTY = '=<script>alert(1)</script>"\r\n,'
FOURTH = {"table": "shop.item", "key": "4"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("lakes")
    build_sample(LakePaths(str(place / "shop")), NASTY)
    return place


@pytest.fixture
def shop(folder: Path, lake: Path) -> None:
    write_replication(folder, "shop", lake=f'path = "{lake}"', source='pd-urls = "http://127.0.0.1:1"')


def test_difference_is_shown_by_key_with_both_values_and_filtered_by_kind(
    server: httpx.Client, bearer: dict[str, str]
) -> None:
    asked = {"table": "shop.item", "from": str(BASE + 10 * S), "to": str(BASE + 40 * S)}
    found = server.get(f"{API}/diff", params=asked, headers=bearer).json()["diff"]
    assert found["counts"] == {"added": 0, "removed": 1, "changed": 1}
    assert [(row["kind"], row["key"]) for row in found["rows"]] == [("changed", '["4"]'), ("removed", '["9"]')]
    assert len(found["ddls"]) == 1
    price = next(one for one in found["rows"][0]["columns"] if one["name"] == "price")
    assert (price["before"], price["after"], price["changed"]) == ("400", "900", True)
    page = server.get(f"{PAGE}/diff", params=asked, headers=bearer).text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "1 changed" in page
    only = server.get(f"{API}/diff", params={**asked, "kind": "removed"}, headers=bearer).json()["diff"]
    assert [row["key"] for row in only["rows"]] == ['["9"]']
    # Between two moments at which nothing happened.
    still = server.get(f"{PAGE}/diff", params={**asked, "from": str(BASE + 37 * S)}, headers=bearer).text
    assert "The table is the same at both moments." in still


def test_difference_has_pages_that_together_are_all_of_it(
    server: httpx.Client, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffs, "PAGE", 15)
    asked = {"table": "shop.item", "from": str(BASE), "to": str(BASE + 10 * S)}
    keys, first = [], 0
    while first is not None:
        found = server.get(f"{API}/diff", params={**asked, "first": str(first)}, headers=bearer).json()["diff"]
        keys += [row["key"] for row in found["rows"]]
        first = found["next"]
    assert keys == [f'["{number}"]' for number in range(1, 41)]
    assert found["total"] == 40


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [({"from": "x"}, 400, "neither a commit_ts"), ({"from": str(BASE + 9 * S), "to": str(BASE + 9 * S)}, 400, "before"),
     ({"from": str(BASE), "kind": "x"}, 400, "kind is one of"), ({"from": str(BASE), "first": "-1"}, 400, "number"),
     ({"from": str(BASE), "to": str(BASE + 99 * S)}, 404, "the lake ends"),
     ({"from": str(BASE), "table": "shop.none"}, 404, "does not know this table")],
    ids=["no moment", "not before", "kind", "first", "beyond", "table"],
)  # fmt: skip
def test_what_cannot_be_compared_is_said(
    server: httpx.Client, bearer: dict[str, str], asked: dict[str, str], status: int, text: str
) -> None:
    answer = server.get(f"{API}/diff", params={"table": "shop.item", **asked}, headers=bearer)
    assert (answer.status_code, text in answer.json()["error"]) == (status, True), answer.text


def test_history_by_column_and_time(server: httpx.Client, bearer: dict[str, str]) -> None:
    def ops(**more: str) -> list[str]:
        view = server.get(f"{API}/row", params={**FOURTH, **more}, headers=bearer).json()
        return [version["op"] for version in view["versions"]]

    assert ops() == ["update", "update", "insert"]
    assert ops(column="price") == ["update", "insert"]
    assert ops(column="name") == ["insert"]
    assert ops(after=str(BASE + 12 * S + 1)) == ["update"]
    assert ops(after=str(BASE + 5 * S), upto=str(BASE + 20 * S)) == ["update"]
    page = server.get(f"{PAGE}/row", params={**FOURTH, "column": "price"}, headers=bearer).text
    assert "<option selected>price</option>" in page
    assert "2 changes of <code>price</code> among 3" in page


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_files_have_every_value_whole_and_null_is_not_empty(server: httpx.Client, bearer: dict[str, str]) -> None:
    answer = server.get(f"{PAGE}/export/row.csv", params=FOURTH, headers=bearer)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="row-shop.item.csv"'
    rows = read_csv(answer.text)
    assert [row["op"] for row in rows] == ["insert", "update", "update"]
    assert (rows[1]["before.price"], rows[1]["after.price"]) == ("400", "900")
    assert (rows[2]["before.note"], rows[2]["after.note"]) == (exports.NULL, NASTY)
    table = server.get(f"{PAGE}/export/table.json", params={"table": "shop.item"}, headers=bearer).json()
    assert len(table) == 39
    assert {row["id"]: row["note"] for row in table}["4"] == NASTY
    assert table[0]["stock"] is None
    asked = {"table": "shop.item", "from": str(BASE + 10 * S), "kind": "removed"}
    differences = read_csv(server.get(f"{PAGE}/export/diff.csv", params=asked, headers=bearer).text)
    assert [(row["key"], row["difference"], row["before.name"]) for row in differences] == [
        ('["9"]', "removed", "item 9"),
    ]  # fmt: skip


def test_file_is_complete_or_there_is_none(
    server: httpx.Client, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MOST", 2)
    for file, asked in (("row.csv", FOURTH), ("table.json", {"table": "shop.item"})):
        answer = server.get(f"{PAGE}/export/{file}", params=asked, headers=bearer)
        assert (answer.status_code, "binlake audit" in answer.text, "disposition" in answer.headers) == (
            404,
            True,
            False,
        )
    for file in ("row.exe", "passwd.csv", "row", ".csv"):
        assert server.get(f"{PAGE}/export/{file}", params=FOURTH, headers=bearer).status_code == 400
    assert server.get(f"{PAGE}/export/table.csv", headers=bearer).status_code == 400
    server.cookies.clear()
    assert server.get(f"{PAGE}/export/row.csv", params=FOURTH).status_code == 401
