"""The audit pages in Airflow's own server: who may see them, answers to hostile requests, and what is never shown."""

from __future__ import annotations

import itertools
import re
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.exact import find_rounded_numbers
from support.replication_files import write_replication

from binlake.cluster.placement import EtcdClient
from binlake.lake.ddls import DdlLine
from binlake.lake.mutations import RowVersion
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.rows.codec import format_key_text
from binlake_airflow.pages import audits, views, web
from binlake_airflow.pages.audits import _build_change_view
from binlake_airflow.pages.masking import Masks
from deploy.local.sample_lake import BASE, S, build_sample, register_cluster

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

OPEN: Any = SimpleNamespace(masks=Masks(None), audit=None)
"""A lake of which nothing is hidden."""
ORDER = BASE + 12 * S + 1
END = BASE + 40 * S
SECRETS = ("hunter2-target", "hunter2-source")
OWN_SCRIPT = '<script src="/binlake/page.js">'
NASTY = "<script>alert(1)</script>\"'&"
HOSTILE = [
    "'", '"', "' OR '1'='1", "shop.item; DROP TABLE item", "../../../etc/passwd", "..%2f..%2fetc", "shop/../item.x",
    "%00", "\x00", "shop.\x00", "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{7*7}}", "${7*7}",
    "a" * 4000, "a" * 9000, "9" * 19, "9" * 400, "-1", "1e9", "²", "٣", "日本.語", "\u202egpj", "\ud7ff", "[", '["a"',
    "[" * 3000, '{"a":1}', "[[1]]", "[null]", "null", "0001-01-01", "9999-12-31T23:59:59+14:00", "2026-11-20T00:00:12Z",
    ".", "..", "shop.", ".item", "file:///etc/passwd", "mirror/shop/item", "\n", "shop.item\r\nX: y",
]  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of lakes that contains the lake of `shop`."""
    place = tmp_path_factory.mktemp("lakes")
    build_sample(LakePaths(str(place / "shop")), NASTY)
    return place


@pytest.fixture
def shop(folder: Path, lake: Path) -> Path:
    """The replication `shop` over its sample lake, with secrets in its file, and PD unreachable; its file."""
    file = write_replication(
        folder,
        "shop",
        lake=f'path = "{lake}"',
        target=f'db-type = "mariadb"\npassword = "{SECRETS[0]}"',
        source=f'pd-urls = "http://127.0.0.1:1"\nsql = {{ host = "h", password = "{SECRETS[1]}" }}',
    )
    file.write_text(f'plain-passwords = ["target.password", "source.sql.password"]\n{file.read_text()}')
    return file


def list_scripts(text: str) -> list[str]:
    """The beginnings of all script elements of a page."""
    return re.findall(r"<script[^>]*>", text)


def every_page(name: str) -> list[str]:
    """Each page of a replication, and its JSON form."""
    paths = [path.replace("{dag_id}", name).replace("{run_id:path}", "r") for path in views.PAGES]
    return [f"/binlake{api}{path}" for path in paths for api in ("", "/api")]


def questions(name: str) -> list[str]:
    """Each page with a request that has an answer."""
    base = f"/binlake{{}}/dags/{name}"
    asked = ["", "/tables?q=ite", f"/row?table=shop.item&key=4&upto={END}", f"/transaction?ts={ORDER}", "/ddl",
             "/checkpoints",
             f"/table?table=shop.item&at={END}", "/runs/scheduled__2026-11-20T10:01:00%2B00:00"]  # fmt: skip
    return [base.format(api) + rest for rest in asked for api in ("", "/api")] + ["/binlake/", "/binlake/api"]


def test_every_page_requires_login_and_permission_for_its_dag(
    server: httpx.Client, shop: Path, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    assert shop.exists()
    server.cookies.clear()
    for path in [*every_page("shop"), "/binlake/", "/binlake/api", "/binlake/style.css", "/binlake/page.js"]:
        assert server.get(path).status_code == 401, path
    for path in questions("shop"):
        answer = server.get(path, headers=bearer)
        assert answer.status_code == 200, path
        #
        assert "/api" not in path or find_rounded_numbers(answer.json()) == [], path
    allowed = SimpleAuthManager.is_authorized_dag

    def allow_except_shop(self: SimpleAuthManager, *, details=None, **more):  # type: ignore[no-untyped-def]
        return getattr(details, "id", None) != "shop" and allowed(self, details=details, **more)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", allow_except_shop)
    write_replication(shop.parent, "other")
    for path in every_page("shop"):
        assert server.get(path, headers=bearer).status_code == 403, path
    listed = server.get("/binlake/api", headers=bearer).json()["replications"]
    assert [one["name"] for one in listed] == ["other"]
    assert "shop" not in server.get("/binlake/", headers=bearer).text


def test_side_dag_page_requires_permission_for_both_dags(
    server: httpx.Client, shop: Path, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    assert shop.exists()
    page = server.get("/binlake/dags/shop.backfill", headers=bearer)
    assert (page.status_code, "Replication <code>shop</code>" in page.text) == (200, True)
    assert 'href="/binlake/dags/shop/row"' in page.text
    assert server.get("/binlake/dags/shop.other", headers=bearer).status_code == 404
    monkeypatch.setattr(
        SimpleAuthManager, "is_authorized_dag", lambda _self, *, details=None, **_: details.id == "shop.backfill"
    )
    for path in ("/binlake/dags/shop.backfill", "/binlake/api/dags/shop.backfill"):
        assert server.get(path, headers=bearer).status_code == 403


def test_page_names_partial_tables(server: httpx.Client, shop: Path, bearer: dict[str, str]) -> None:
    # the sample lake starts after its tables had rows
    assert shop.exists()
    told = server.get("/binlake/api/dags/shop", headers=bearer).json()["in_part"]
    assert {one["table"] for one in told["tables"]} >= {"shop.item", "shop.log"}
    assert told["more"] == 0
    assert "Tables known in part" in server.get("/binlake/dags/shop", headers=bearer).text
    page = server.get(f"/binlake/dags/shop/table?table=shop.item&at={END}", headers=bearer).text
    assert "<strong>Inexact:</strong> known in part" in page


def test_page_names_rows_found_by_validation(
    server: httpx.Client, shop: Path, lake: Path, bearer: dict[str, str]
) -> None:
    assert shop.exists()
    listed = [{"number": 7, "table": "shop.<b>", "key": "#12ab", "kind": "different", "columns": ["n"],
               "against": "source", "window": "1-2", "times": 3}]  # fmt: skip
    detail = {"errors": 1, "pending": 4, "ignored": 0, "listed": listed, "reason": "the feeder does not answer"}
    log = WindowLog(LakePaths(str(lake / "shop")))
    log.record(WindowEvent("validate", END - 1, END, "done", 50, run_id="v", sink="sql", detail=detail))
    page = server.get("/binlake/dags/shop", headers=bearer).text
    assert "1 errors, 4 pending, 0 ignored" in page
    assert "7: <code>shop.&lt;b&gt;</code> key <code>#12ab</code> different in <code>n</code>" in page
    assert "the feeder does not answer" in page
    assert server.get("/binlake/api/dags/shop", headers=bearer).json()["validated"]["errors"] == 1
    # Restore the state for other tests on the same lake.
    log.record(WindowEvent("validation", END, END, "cleared", 1, detail={"errors": 0, "listed": []}))


def test_no_page_shows_a_secret_or_executes_a_value(server: httpx.Client, shop: Path, bearer: dict[str, str]) -> None:
    assert shop.exists()
    for path in questions("shop"):
        answer = server.get(path, headers=bearer)
        assert not any(secret in answer.text for secret in SECRETS), path
        # Only Binlake's own script runs: none that is written into a page.
        assert "script-src 'self';" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        if "/api" not in path:
            assert list_scripts(answer.text) == [OWN_SCRIPT], path
            assert "://" not in answer.text, path
    assert "&lt;script&gt;" in server.get(f"/binlake/dags/shop/table?table=shop.item&at={END}", headers=bearer).text


FORMS = [
    ("row", {"table": "*"}), ("row", {"table": "shop.item", "key": "*"}), ("row", {"table": "shop.item", "json": "*"}),
    ("row", {"table": "shop.log", "key": "*", "upto": "*"}), ("table", {"table": "*", "at": "*"}),
    ("table", {"table": "shop.item", "at": "*"}), ("transaction", {"ts": "*"}),
    ("transaction", {"ts": str(ORDER), "first": "*"}), ("ddl", {"upto": "*"}),
]  # fmt: skip


def test_hostile_requests_never_cause_a_server_error(server: httpx.Client, shop: Path, bearer: dict[str, str]) -> None:
    assert shop.exists()
    # Each text in two forms, each form with several texts; tests/plugins/test_request.py has all combinations.
    both = [*zip(HOSTILE, itertools.cycle(FORMS)), *zip(reversed(HOSTILE), itertools.cycle(FORMS))]
    for text, (page, form) in both:
        query = {name: text if value == "*" else value for name, value in form.items()}
        answer = server.get(f"/binlake/dags/shop/{page}", params=query, headers=bearer)
        assert answer.status_code in (200, 400, 404), (page, query, answer.text)
        assert list_scripts(answer.text) == [OWN_SCRIPT], (page, query)
        assert "onerror=alert(1)>" not in answer.text, (page, query)


def test_hostile_names_in_a_path_are_not_found(server: httpx.Client, shop: Path, bearer: dict[str, str]) -> None:
    assert shop.exists()
    for text in (text for text in HOSTILE if len(text) < 1000 and text not in (".", "..")):
        name = quote(text, safe="")
        assert server.get(f"/binlake/dags/{name}", headers=bearer).status_code == 404, text
        run = server.get(f"/binlake/dags/shop/runs/{name}", headers=bearer)
        assert run.status_code in (200, 404), text
        assert list_scripts(run.text) in ([OWN_SCRIPT], []), text


def test_invalid_request_says_what_is_wrong(
    server: httpx.Client, shop: Path, lake: Path, bearer: dict[str, str]
) -> None:
    assert shop.exists()
    wrong = {
        "row?table=item": (400, "does not name a table"),
        "row?table=shop.other": (404, "does not know this table"),
        "row?table=shop.pair&key=1": (400, "identified by (n, code)"),
        "row?table=shop.item&key=4&upto=soon": (400, "is neither a commit_ts nor a time"),
        f"row?table=shop.item&key=4&upto={END + 1}": (404, "the lake ends at"),
        f"transaction?ts={BASE - 12}": (404, f"there is no transaction with commit_ts or start_ts {BASE - 12}"),
        "transaction?ts=12": (400, "would be the commit_ts of 1970"),
        "transaction?ts=x": (400, "in decimal"),
        f"table?table=shop.item&at={BASE - 1}": (404, "the lake starts at"),
    }
    for path, (status, text) in wrong.items():
        answer = server.get(f"/binlake/dags/shop/{path}", headers=bearer)
        assert answer.status_code == status, path
        assert text in answer.text
        assert text in server.get(f"/binlake/api/dags/shop/{path}", headers=bearer).json()["error"]
        assert str(lake) not in answer.text


def test_row_links_to_its_transaction_and_run_with_exact_timestamps(
    server: httpx.Client, shop: Path, bearer: dict[str, str]
) -> None:
    # C-07 R-46
    assert shop.exists()
    row = server.get("/binlake/api/dags/shop/row?table=shop.item&key=4", headers=bearer).json()
    assert [version["op"] for version in row["versions"]] == ["update", "update", "insert"]
    assert row["versions"][1]["commit"] == {"commit_ts": str(ORDER), "time": "2026-11-20T00:00:12.000+00:00"}
    changed = [column["name"] for column in row["versions"][1]["columns"] if column["changed"]]
    assert changed == ["price"]
    applied = next(p for p in row["versions"][1]["passages"] if p["stage"] == "finalize")
    found = server.get(f"/binlake/api/dags/shop/transaction?ts={ORDER}", headers=bearer).json()["transaction"]
    assert [change["table"] for change in found["changes"]] == ["shop.item", "shop.log", "shop.pair"]
    assert found["commit"]["commit_ts"] == str(ORDER)
    run = server.get(f"/binlake/api/dags/shop/runs/{quote(applied['run_id'])}", headers=bearer).json()
    assert int(run["window"]["lo"]["commit_ts"]) < ORDER <= int(run["window"]["hi"]["commit_ts"])
    moved = server.get("/binlake/api/dags/shop/row", params={"table": "shop.pair", "json": '["2","AB01"]'},
                       headers=bearer).json()  # fmt: skip
    assert [(v["key"], v["new_key"]) for v in moved["versions"]] == [('["1","AB01"]', '["2","AB01"]')]
    page = server.get("/binlake/dags/shop/row", params={"table": "shop.pair", "json": '["2","AB01"]'}, headers=bearer)
    for key in ('["1","AB01"]', '["2","AB01"]'):
        assert f"json={quote(key)}" in page.text
    assert "under this key and name" in page.text


def test_a_transaction_is_shown_table_by_table_a_line_a_row() -> None:
    def build(seq: int, table: str, op: str, **columns: str) -> dict[str, Any]:
        before, after = (None if op == gone else columns for gone in ("insert", "delete"))
        key = f'["{columns["id"]}"]'
        return _build_change_view(OPEN, RowVersion(5, 4, seq, 1, "d", table, op, key, None, before, after))

    changes = [build(0, "b", "insert", id="1"), build(1, "a", "update", id="2", x="7"), build(2, "b", "delete", id="3")]
    moment = {"commit_ts": "5", "time": "2026-11-20T00:00:00.000+00:00"}
    found = {
        "commit": moment, "start": moment, "kind": "dml", "schema_version": 1, "pumps": ["p"], "bytes": 9, "remark": "",
        "ddl": [], "passages": [], "total": 3, "first": 0, "next": None, "changes": changes,
    }  # fmt: skip
    text = web._pages.get_template("transaction.html").render(
        layout="fragment.html", root="/", dag_id="d", path="/t", view={"ts": "5", "transaction": found}, may_act=False
    )
    assert re.findall(r"<h3><code>(.*?)</h3>", text) == ["d.a</code>, 1 row change", "d.b</code>, 2 row changes"]
    assert re.findall(r'<tr class="(\w+)">', text) == ["update", "insert", "delete"]
    heads = [re.findall(r'<th scope="col">(\w+)</th>', head) for head in text.split("<thead>")[2:]]
    assert heads == [["Row", "Change", "id", "x", "Number"], ["Row", "Change", "id", "Number"]]


def test_a_table_is_shown_page_by_page_up_to_a_limit(
    server: httpx.Client, shop: Path, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shop.exists()
    monkeypatch.setattr(audits, "ROWS", 15)
    at, shown, first, pages = BASE + 10 * S, [], 0, 0
    while True:
        pages += 1
        found = server.get(f"/binlake/api/dags/shop/table?table=shop.item&at={at}&first={first}", headers=bearer).json()
        shown += [row[0] for row in found["preview"]["rows"]]
        text = server.get(f"/binlake/dags/shop/table?table=shop.item&at={at}&first={first}", headers=bearer).text
        first = found["preview"]["next"]
        assert (f"table=shop.item&amp;at={at}&amp;first={first}" in text) is (first is not None)
        if first is None:
            break
    assert (pages, sorted(map(int, shown))) == (3, list(range(1, 41)))
    answer = server.get("/binlake/api/dags/shop/table?table=shop.item&first=1951", headers=bearer)
    assert (answer.status_code, "the file has more" in answer.json()["error"]) == (400, True)


def test_too_long_key_is_cut_and_has_no_link() -> None:
    long, short = format_key_text(["k" * 5000]), format_key_text(["k" * 400])
    shown = [
        _build_change_view(OPEN, RowVersion(1, 1, 0, 1, "d", "t", "update", one, None, {}, {})) for one in (long, short)
    ]
    assert [len(one["key"]) < 400 for one in shown] == [True, True]
    assert [one["key_asked"] for one in shown] == [None, short]


def test_ddl_of_one_commit_ts_stay_on_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [DdlLine(ts, n, n, "d", "t", "q", "q", "apply", "") for n, ts in enumerate((9, 5, 5, 5, 4), 1)]

    def newest(_: object, count: int, upto: int | None = None) -> list[DdlLine]:
        found = [line for line in lines if upto is None or line.commit_ts <= upto]
        return [line for line in found if line.commit_ts >= found[:count][-1].commit_ts] if found else []

    monkeypatch.setattr(audits, "read_newest_ddls", newest)
    lake = SimpleNamespace(paths=None)
    first = audits.build_ddls_view(lake, None, 2)
    assert ([line["commit_ts"] for line in first["ddls"]], first["older"]) == (["9", "5", "5", "5"], "4")
    rest = audits.build_ddls_view(lake, 4, 2)
    assert ([line["commit_ts"] for line in rest["ddls"]], rest["older"]) == (["4"], None)


def test_landed_but_unmerged_windows_are_reported_as_missing(
    server: httpx.Client, folder: Path, tmp_path: Path, bearer: dict[str, str]
) -> None:
    lake = LakePaths(str(tmp_path / "late"))
    build_sample(lake)
    WindowLog(lake).record(WindowEvent("land", END, END + S, "done", 1))
    write_replication(folder, "late", lake=f'path = "{tmp_path}"')
    page = server.get("/binlake/dags/late/row?table=shop.item&key=4", headers=bearer)
    assert (
        f"Not searched, because landed but not merged yet: everything after it, up to <code>{END + S}</code>"
        in page.text
    )
    assert f"read up to <code>{END}</code>" in page.text


def test_table_is_shown_as_of_a_commit_ts_or_a_time(server: httpx.Client, shop: Path, bearer: dict[str, str]) -> None:
    # C-07
    assert shop.exists()

    def price(at: object) -> str:
        params = {"table": "shop.item", "at": str(at)}
        view = server.get("/binlake/api/dags/shop/table", params=params, headers=bearer).json()["preview"]
        row = next(row for row in view["rows"] if row[0] == "4")
        return str(row[view["columns"].index("price")])

    assert (price(ORDER - 1), price(ORDER)) == ("400", "900")
    assert (price("2026-11-20T00:00:11.999Z"), price("2026-11-20T09:00:12+09:00")) == ("400", "900")


def test_nodes_are_shown_and_an_unreachable_pd_is_reported(
    server: httpx.Client, shop: Path, bearer: dict[str, str], etcd_url: str
) -> None:
    away = server.get("/binlake/dags/shop", headers=bearer)
    assert "Unreachable" in away.text
    with closing(EtcdClient([etcd_url])) as etcd:
        # The server is shared by the session, so other tests may have registered nodes.
        etcd.delete(b"/tidb-binlog/", b"/tidb-binlog0")
    register_cluster(etcd_url)
    write_replication(shop.parent, "there", source=f'pd-urls = "{etcd_url}"')
    view = server.get("/binlake/api/dags/there", headers=bearer).json()["nodes"]
    assert [(node["id"], node["state"]) for node in view["nodes"]] == [
        ("pump-1", "online"), ("pump-2", "paused"), ("binlake-shop", "paused"),
    ]  # fmt: skip
    assert all(isinstance(node["position"]["commit_ts"], str) for node in view["nodes"])
    assert "10.0.0.1:8250" in server.get("/binlake/dags/there", headers=bearer).text


def test_unreadable_lake_hides_no_other(server: httpx.Client, shop: Path, bearer: dict[str, str]) -> None:
    (shop.parent / "broken" / "broken").mkdir(parents=True)
    (shop.parent / "broken" / "broken" / "window").mkdir()
    (shop.parent / "broken" / "broken" / "window" / "_delta_log").mkdir()
    (shop.parent / "broken" / "broken" / "window" / "_delta_log" / f"{0:020}.json").write_text("{}}")
    write_replication(shop.parent, "broken", lake=f'path = "{shop.parent}/broken"')
    write_replication(shop.parent, "away", lake=f'path = "{shop.parent}/not-mounted"')
    listed = server.get("/binlake/api", headers=bearer).json()["replications"]
    assert [(one["name"], "problem" in one) for one in listed] == [("away", True), ("broken", True), ("shop", False)]
    assert "there is no lake at its path" in listed[0]["problem"]
    assert "Not readable" in server.get("/binlake/", headers=bearer).text


def test_tables_are_found_by_a_part_of_their_name(
    server: httpx.Client, shop: Path, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shop.exists()

    def find(**asked: str | int) -> dict[str, object]:
        answer = server.get("/binlake/api/dags/shop/tables", params=asked, headers=bearer)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    assert find()["found"] == ["shop.item", "shop.log", "shop.pair"]
    assert find(q="P.I")["found"] == ["shop.item"]
    assert (find(q="%")["found"], find(q="s?op")["total"]) == ([], 0)
    monkeypatch.setattr(audits, "_FOUND", 2)
    first = find(q="shop.")
    assert (first["found"], first["total"], first["next"]) == (["shop.item", "shop.log"], 3, 2)
    assert find(q="shop.", first=2)["found"] == ["shop.pair"]
    for hostile in HOSTILE:
        if len(hostile) <= 4096:
            page = server.get("/binlake/dags/shop/tables", params={"q": hostile}, headers=bearer)
            assert page.status_code == 200
            assert list_scripts(page.text) == [OWN_SCRIPT]
    page = server.get("/binlake/dags/shop/tables", params={"q": "item"}, headers=bearer).text
    assert 'href="/binlake/dags/shop/table?table=shop.item"' in page
    assert server.get("/binlake/api/dags/shop/tables", params={"first": "x"}, headers=bearer).status_code == 400


def test_tables_of_an_empty_lake_are_none(server: httpx.Client, folder: Path, bearer: dict[str, str]) -> None:
    write_replication(folder, "fresh")
    answer = server.get("/binlake/api/dags/fresh/tables", headers=bearer)
    assert (answer.status_code, answer.json()["found"]) == (200, [])
