"""One suite for all status ports: that of a capture, and answers recorded from real TiDBs."""

from __future__ import annotations

import itertools
import json
import random
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from support.mariadb import MariaDb, execute

from binlake.cluster.source import Committed, Locked, RolledBack, SqlHistory, TidbSource, Unknown, read_status
from binlake.cluster.source.tidb import PAGE, SPARE, StatusPort
from binlake.config.servers import SourceSql
from binlake.errors import ConfigError, SourceUnavailable, WireError
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes, build_status_server

CAPTURES = Path(__file__).parents[2] / "captures"
FOREVER = 1 << 62


class NoClock:
    """A PD that must not be called."""

    def fetch_ts(self, count: int = 1) -> int:
        raise AssertionError(f"asked for {count} timestamps")


@dataclass
class Served:
    """A status port, its jobs by id, and the requests it received."""

    source: TidbSource
    jobs: dict[int, dict[str, object]]
    requests: list[str]


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], tuple[int, str]]], str]]:
    """Serve the results of a function of the request target on a free port."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Callable[[str], tuple[int, str]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = answer(self.path)
                self.send_response(code)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def recorded_tidb(
    jobs: list[dict[str, object]], inclusive: bool, requests: list[str]
) -> Callable[[str], tuple[int, str]]:
    """A status port with recorded jobs; depending on the version, answers include start_job_id itself or not."""

    def answer(target: str) -> tuple[int, str]:
        requests.append(target)
        query = {name: int(values[0]) for name, values in parse_qs(urlsplit(target).query).items()}
        start = query.get("start_job_id", 0)
        newest = sorted(jobs, key=lambda job: -int(str(job["id"])))
        shown = [j for j in newest if not start or int(str(j["id"])) < start + inclusive]
        return 200, json.dumps(shown[: query["limit"]])

    return answer


def history_table(server: MariaDb, jobs: Iterable[Mapping[str, object]]) -> SourceSql:
    """A MariaDB with TiDB's table of finished jobs, for a user who may read only this table."""
    execute(
        server,
        "CREATE OR REPLACE TABLE mysql.tidb_ddl_history (job_id BIGINT NOT NULL PRIMARY KEY, job_meta LONGBLOB,"
        " db_name CHAR(64), table_name CHAR(64), schema_ids TEXT(65535), table_ids TEXT(65535), create_time DATETIME)",
        "CREATE OR REPLACE USER historian IDENTIFIED BY 'secret'",
        "GRANT SELECT ON mysql.tidb_ddl_history TO historian",
    )
    link = server.connect()
    with link.cursor() as cursor:
        values = [(job["id"], json.dumps(job)) for job in jobs]
        cursor.executemany("INSERT INTO mysql.tidb_ddl_history (job_id, job_meta) VALUES (%s, %s)", values)
    link.close()
    return SourceSql(host=server.host, port=server.port, user="historian", password="secret")


@pytest.fixture(params=["capture", "tidb inclusive", "tidb exclusive", pytest.param("sql", marks=pytest.mark.mariadb)])
def port(request: pytest.FixtureRequest, serve: Callable[[Callable[[str], tuple[int, str]]], str]) -> Iterator[Served]:
    capture = Capture(CAPTURES / "shard")
    jobs = {int(job["id"]): job for job in capture.read_jobs()}
    requests: list[str] = []
    if request.param == "capture":
        with build_status_server(capture, Outcomes.of(capture), lambda: FOREVER) as server:
            yield Served(TidbSource(NoClock(), server.url), jobs, requests)
        return
    if request.param == "sql":
        sql = history_table(request.getfixturevalue("mariadb"), jobs.values())
        source = TidbSource(NoClock(), "http://127.0.0.1:1", history=SqlHistory(sql))
        yield Served(source, jobs, requests)
        source.close()
        return
    url = serve(recorded_tidb(list(jobs.values()), request.param.endswith("inclusive"), requests))
    yield Served(TidbSource(NoClock(), url), jobs, requests)


def test_jobs_are_returned_newest_first_and_once(port: Served) -> None:
    assert len(port.jobs) > PAGE, "the suite must cross a page"
    assert list(port.source.fetch_ddl_jobs(0)) == [port.jobs[n] for n in sorted(port.jobs, reverse=True)]


def test_jobs_end_above_the_known_one(port: Served) -> None:
    ids = sorted(port.jobs, reverse=True)
    assert [job["id"] for job in port.source.fetch_ddl_jobs(ids[3])] == ids[:3]
    assert list(port.source.fetch_ddl_jobs(ids[0])) == []


def test_history_is_read_page_by_page(port: Served) -> None:  # invariant 5: never loaded whole
    first = next(port.source.fetch_ddl_jobs(0))
    assert first["id"] == max(port.jobs)
    assert len(port.requests) <= 1
    assert all("limit=" in request for request in port.requests)


@pytest.mark.long
def test_started_by_skips_newer_jobs(
    serve: Callable[[Callable[[str], tuple[int, str]]], str],
) -> None:  # DESIGN 3.5: cost is flat in history
    requests: list[str] = []
    ids = random.Random(3).sample(range(1, 60_000), 9_000)
    jobs: list[dict[str, object]] = [{"id": n, "start_ts": n * 10 + n % 3 * 7} for n in sorted(ids)]
    source = TidbSource(NoClock(), serve(recorded_tidb(jobs, True, requests)))
    for ts in (5, 70_000, 300_000, 599_000, 10**9):
        wanted = [job["id"] for job in reversed(jobs) if int(str(job["start_ts"])) <= ts]
        requests.clear()
        found = [job["id"] for job in itertools.islice(source.fetch_ddl_jobs(0, started_by=ts), 300)]
        kept = [n for n in found if n in set(wanted)]
        assert kept == wanted[: len(kept)]
        assert len(kept) == min(len(wanted), 300 - (len(found) - len(kept)))
        assert len(found) - len(kept) < SPARE
        assert len(requests) < 40


def test_jobs_are_returned_by_id(port: Served) -> None:
    ids = sorted(port.jobs)
    wanted = [ids[0], ids[5], ids[40], ids[-1]]
    assert port.source.fetch_ddl_jobs_by_id(wanted) == {n: port.jobs[n] for n in wanted}
    assert port.source.fetch_ddl_jobs_by_id([]) == {}


@pytest.mark.mariadb
def test_history_by_sql_reports_what_is_wrong(mariadb: MariaDb) -> None:  # S0-60
    sql = history_table(mariadb, [{"id": 7}])
    history = SqlHistory(sql)
    execute(mariadb, "UPDATE mysql.tidb_ddl_history SET job_meta = '[1'")
    with pytest.raises(WireError, match=r"job_meta of a DDL job is not a JSON object.*job_id=7"):
        history.fetch_page(0)
    execute(mariadb, "DROP TABLE mysql.tidb_ddl_history")
    with pytest.raises(ConfigError, match=r"tidb_ddl_history.*user=historian\] Hint: set \[source.sql\]"):
        history.fetch_page(0)
    history.close()
    with pytest.raises(ConfigError, match="Access denied"):
        SqlHistory(sql.model_copy(update={"password": "wrong"})).fetch_page(0)
    with pytest.raises(SourceUnavailable, match=r"refused.*server=127\.0\.0\.1:1"):
        SqlHistory(sql.model_copy(update={"port": 1})).fetch_page(0)


def test_unfinished_job_is_missing(port: Served) -> None:
    absent = max(port.jobs) + 1
    assert port.source.fetch_ddl_jobs_by_id([absent]) == {}
    assert set(port.source.fetch_ddl_jobs_by_id([absent, min(port.jobs)])) == {min(port.jobs)}


def test_empty_history_returns_no_jobs(serve: Callable[[Callable[[str], tuple[int, str]]], str]) -> None:
    source = TidbSource(NoClock(), serve(lambda _: (200, "null")))
    assert list(source.fetch_ddl_jobs(0)) == []
    assert source.fetch_ddl_jobs_by_id([7]) == {}


def test_port_without_paging_is_an_error_not_an_endless_loop(
    serve: Callable[[Callable[[str], tuple[int, str]]], str],
) -> None:
    jobs = [{"id": n} for n in range(200, 200 - PAGE, -1)]
    source = TidbSource(NoClock(), serve(lambda _: (200, json.dumps(jobs))))
    with pytest.raises(WireError, match="does not page"):
        list(source.fetch_ddl_jobs(0))


@pytest.mark.parametrize("body", ["{", '{"id": 1}', '[{"type": 3}]', "[1]"])
def test_unexpected_answer_is_one_clear_error(
    serve: Callable[[Callable[[str], tuple[int, str]]], str], body: str
) -> None:
    with pytest.raises(WireError, match="not a list of DDL jobs"):
        list(TidbSource(NoClock(), serve(lambda _: (200, body))).fetch_ddl_jobs(0))


def test_next_url_is_tried_and_every_failure_is_named(
    serve: Callable[[Callable[[str], tuple[int, str]]], str],
) -> None:
    broken = serve(lambda _: (500, "no leader"))
    good = serve(lambda _: (200, "[]"))
    assert list(TidbSource(NoClock(), f"{broken}, {good}").fetch_ddl_jobs(0)) == []
    with pytest.raises(SourceUnavailable, match=r"HTTP 500 no leader.*127\.0\.0\.1:1:"):
        list(TidbSource(NoClock(), [broken, "http://127.0.0.1:1"]).fetch_ddl_jobs(0))


def test_transaction_status_is_looked_up_by_key(serve: Callable[[Callable[[str], tuple[int, str]]], str]) -> None:
    asked: list[str] = []

    def answer(target: str) -> tuple[int, str]:
        asked.append(target)
        return 200, '{"value": {"info": {"writes": [{"start_ts": 5, "commit_ts": 8}]}}}'

    source = TidbSource(NoClock(), serve(answer))
    assert source.fetch_transaction_status(5, b"\x74\xff") == Committed(8)
    assert asked == ["/mvcc/hex/74ff"]
    assert isinstance(source.fetch_transaction_status(5, b""), Unknown)
    assert len(asked) == 1


LOCKED = '{"value": {"info": {"lock": {"start_ts": 5, "primary": "dA==", "ttl": 3000}, "writes": [{"start_ts": 3, "commit_ts": 4}]}}}'  # noqa: E501


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('{"value": {"info": {"writes": [{"start_ts": 5, "commit_ts": 8, "type": 1}]}}}', Committed(8)),
        ('{"info": {"writes": [{"start_ts": 5, "commit_ts": 8}]}}', Committed(8)),
        ('{"value": {"info": {"writes": [{"type": 3, "start_ts": 5, "commit_ts": 5}]}}}', RolledBack()),
        (LOCKED, Locked(3000)),
    ],
)
def test_only_a_write_record_proves_an_outcome(body: str, status: object) -> None:
    assert read_status(body, 5) == status


@pytest.mark.parametrize(
    "body",
    [
        "", "null", "[]", "{", '{"value": null}', '{"value": {"info": {}}}', '{"value": {"info": {"writes": 3}}}',
        '{"value": {"info": {"writes": [{"start_ts": "x"}]}}}', '{"value": {"info": {"writes": [{"start_ts": 5}]}}}',
        '{"value": {"info": {"writes": [{"start_ts": 6, "commit_ts": 8}]}}}',
    ],
)  # fmt: skip
def test_all_other_answers_are_unknown(body: str) -> None:
    assert isinstance(read_status(body, 5), Unknown)


def test_certificates_are_read_only_for_https(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **named: read.append(str(named)))
    StatusPort("http://127.0.0.1:10080")
    assert read == []
    StatusPort(["http://127.0.0.1:10080", "HTTPS://tidb.example:10080"])
    assert read
