"""Resolves orphan P: only a record of the source is a proof (hazards R-07; answers as TiDB v7.5 gives them)."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pump_cluster import MemoryCluster
from pump_helpers import VALUE, commit, prewrite, reach, rollback, settled, store, until

from binlake import tso
from binlake.cluster.source import Absent, Committed, Locked, RolledBack, Status, TidbSource, Unknown, read_status
from binlake.errors import SourceUnavailable
from binlake.pump_service.pump.clients import NoStatusSource
from binlake.pump_service.pump.config import TXN_TIMEOUT_S
from binlake.pump_service.pump.metrics import PumpMetrics
from binlake.pump_service.pump.outcomes import PrewriteVerdict, Resolver
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog


def answer(**info: object) -> str:
    """The body of TiDB's status port."""
    return json.dumps({"key": "7480", "region_id": 2, "value": {"info": info}})


@pytest.fixture
def status_port() -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """A status port on loopback: its url, its answers by path, and the requested paths."""
    answers: dict[str, str] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = answers.get(self.path, "").encode()
            self.send_response(200 if body else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", answers, asked
    server.shutdown()
    server.server_close()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[PumpStorage]:
    opened = PumpStorage(tmp_path)
    yield opened
    opened.close()


def test_orphans_are_resolved_by_the_answers_of_the_status_port(
    storage: PumpStorage, status_port: tuple[str, dict[str, str], list[str]]
) -> None:
    # S0-49, R-07
    url, answers, asked = status_port
    source = TidbSource(MemoryCluster(), ["http://127.0.0.1:1", url])  # the first one is down, so the next is asked
    resolver = Resolver(storage, source)
    store(storage, prewrite(100), prewrite(200), build.build_fake(700))
    until(lambda: storage.count_unmatched() == (2, 100), "both wait")
    resolver.resolve_waiting()
    assert asked == []  # their commits may be on the way
    resolver.resolve_waiting()
    asked.sort()  # they are asked about in parallel
    assert asked == ["/mvcc/hex/" + b"k100".hex(), "/mvcc/hex/" + b"k200".hex()]
    assert "start_ts=100" in resolver.blocked
    assert "HTTP 400" in resolver.blocked
    assert settled(storage) == []

    answers[asked[0]] = answer(lock={"start_ts": 100})
    resolver.resolve_waiting()
    assert "lock still exists" in resolver.blocked
    answers[asked[0]] = answer()  # neither lock nor write: TiKV may have collected them, so this proves nothing
    resolver.resolve_waiting()
    assert "neither lock nor write" in resolver.blocked
    assert storage.watermark == 0
    answers[asked[0]] = answer(writes=[{"start_ts": 100, "commit_ts": 500}])
    answers[asked[1]] = answer(writes=[{"type": 3, "start_ts": 200, "commit_ts": 200}])
    resolver.resolve_waiting()
    until(lambda: storage.watermark == 700, "both are resolved")
    assert [ts for _, ts, _ in settled(storage)] == [500, 700]
    resolver.resolve_waiting()
    assert (resolver.blocked, resolver.queries) == ("", 8)
    source.close()


def test_without_a_source_to_ask_a_prewrite_blocks_and_the_reason_is_shown(storage: PumpStorage) -> None:
    resolver = Resolver(storage, NoStatusSource())
    store(storage, prewrite(100))
    until(lambda: storage.count_unmatched() == (1, 100), "it waits")
    resolver.resolve_waiting()
    resolver.resolve_waiting()
    assert "--status-url" in resolver.blocked


class Answers:
    """A status source with an answer by start_ts; `asked`: the start_ts in order of the requests."""

    def __init__(self, answers: dict[int, Status]) -> None:
        self.answers = answers
        self.asked: list[int] = []

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        assert key == f"k{start_ts}".encode()
        self.asked.append(start_ts)
        status = self.answers.get(start_ts)
        if status is None:
            raise SourceUnavailable("the source does not answer")
        return status


@pytest.fixture
def doubting(tmp_path: Path) -> Iterator[PumpStorage]:
    """A storage that does not trust a writer's R."""
    opened = PumpStorage(tmp_path / "doubting", StorageOptions(trust_rollbacks=False))
    yield opened
    opened.close()


def ask_until(resolver: Resolver, condition: Callable[[], bool], what: str) -> None:
    """Verify repeatedly, as the pump does."""

    def look() -> bool:
        resolver.verify_rollbacks()
        return condition()

    until(look, what, 300)


def test_a_false_rollback_loses_nothing(doubting: PumpStorage) -> None:
    # TiDB sends an R after an undetermined commit, too. 100 is committed, 200 is rolled back.
    source = Answers({100: Committed(500), 200: RolledBack()})
    resolver = Resolver(doubting, source)
    store(doubting, prewrite(100), rollback(100), prewrite(200), rollback(200), build.build_fake(700))
    until(lambda: len(doubting.list_doubted_prewrites()) == 2, "both wait for a proof")
    assert (doubting.watermark, settled(doubting)) == (0, [])
    ask_until(resolver, lambda: doubting.watermark == 700, "both are proved")
    transactions = settled(doubting)
    assert [(start, ts) for start, ts, _ in transactions] == [(100, 500), (700, 700)]
    assert Binlog.FromString(transactions[0][2]).prewrite_value == VALUE
    counters = resolver.counters
    assert (counters.committed, counters.rolled_back, counters.contradicted, counters.queries) == (1, 1, 1, 2)


def test_a_rollback_waits_until_it_is_proved_and_the_reason_is_shown(doubting: PumpStorage) -> None:
    # locked, unknown and unreachable prove nothing.
    source = Answers({})
    resolver = Resolver(doubting, source)
    store(doubting, prewrite(100), rollback(100), build.build_fake(700))
    for answer, why in (
        (None, "the source does not answer"),
        (Locked(3000), "lock"),
        (Unknown("no record"), "no record"),
    ):
        source.answers = {} if answer is None else {100: answer}
        ask_until(resolver, lambda why=why: why in resolver.blocked, why)
        assert "start_ts=100" in resolver.blocked
        assert doubting.watermark == 0
    source.answers = {100: RolledBack()}
    ask_until(resolver, lambda: doubting.watermark == 700, "proved")
    ask_until(resolver, lambda: resolver.blocked == "", "nothing waits")
    assert [ts for _, ts, _ in settled(doubting)] == [700]


class Clock:
    """PD's clock."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> int:
        return tso.compose(int(self.now_s * 1000))


@pytest.fixture
def absent_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """Shorten the time between two answers that prove a rollback."""
    monkeypatch.setattr("binlake.pump_service.pump.outcomes._ABSENT_S", 0.05)
    return 0.05


def test_a_young_rollback_is_proved_when_the_source_twice_has_no_record(doubting: PumpStorage, absent_s: float) -> None:
    # an unprotected rollback leaves no record for long, and a commit would have left one.
    young, silent = tso.compose(1_000_000), tso.compose(1_000_001)
    source = Answers({young: Absent(), silent: Absent()})
    resolver = Resolver(doubting, source, clock=Clock(1599.0))
    store(doubting, prewrite(young), rollback(young))
    until(lambda: len(doubting.list_doubted_prewrites()) == 1, "the rollback waits for a proof")
    ask_until(resolver, lambda: bool(source.asked), "asked")
    assert doubting.list_doubted_prewrites(), "one answer proves nothing"
    ask_until(resolver, lambda: not doubting.list_doubted_prewrites(), "proved")
    assert len(source.asked) >= 2
    assert resolver.counters.rolled_back == 1
    store(doubting, prewrite(silent), build.build_fake(tso.compose(1_000_002)))  # without an R nothing changes
    until(lambda: doubting.count_unmatched() == (1, silent), "it waits")
    begun = time.monotonic()
    while time.monotonic() - begun < 3 * absent_s:
        resolver.resolve_waiting()
        resolver.verify_rollbacks()
    assert doubting.count_unmatched() == (1, silent)
    assert "neither lock nor write" in resolver.blocked


@pytest.mark.long
@pytest.mark.parametrize("case", ["old", "no clock", "clock is down", "not sure", "a lock between"])
@pytest.mark.usefixtures("absent_s")
def test_absence_alone_proves_nothing(doubting: PumpStorage, case: str) -> None:
    # a commit record of an old transaction may have been collected, and an uninformative answer is not an
    # absence.
    start = tso.compose(1_000_000)
    answers = [Unknown("region error") if case == "not sure" else Absent()]
    if case == "a lock between":
        answers = [Absent(), Locked()]
    asked = itertools.cycle(answers)

    class Source:
        def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
            del start_ts, key
            return next(asked)

    def down() -> int:
        raise SourceUnavailable("PD does not answer")

    clock = {"no clock": None, "clock is down": down, "old": Clock(1600.0)}.get(case, Clock(1001.0))
    resolver = Resolver(doubting, Source(), clock=clock)
    store(doubting, prewrite(start), rollback(start))
    until(lambda: len(doubting.list_doubted_prewrites()) == 1, "the rollback waits for a proof")
    ask_until(resolver, lambda: resolver.queries >= 5, "asked often")
    assert len(doubting.list_doubted_prewrites()) == 1


@pytest.mark.parametrize(
    ("body", "absent"),
    [
        (answer(), True),
        (answer(writes=[{"start_ts": 9, "commit_ts": 10}]), True),
        (json.dumps({"key": "74", "value": {"region_error": {"message": "no leader"}}}), False),
        (json.dumps({"key": "74", "value": {"error": "not found", "info": {}}}), False),
        (json.dumps({"key": "74", "value": {}}), False),
        (json.dumps({}), False),
    ],
)
def test_only_an_answer_about_the_key_shows_that_it_has_no_record(body: str, absent: bool) -> None:
    status = read_status(body, 100)
    assert isinstance(status, Unknown)
    assert isinstance(status, Absent) is absent


def test_questions_about_one_rollback_become_rarer(doubting: PumpStorage) -> None:
    source = Answers({100: Unknown("no record")})
    resolver = Resolver(doubting, source)
    store(doubting, prewrite(100), rollback(100))
    until(lambda: len(doubting.list_doubted_prewrites()) == 1, "it waits")
    for _ in range(1000):
        resolver.verify_rollbacks()
    assert 1 <= len(source.asked) <= 5


def test_proofs_and_doubts_survive_a_restart_and_a_lost_index(tmp_path: Path) -> None:
    # the source forgets (TiKV keeps rollbacks for minutes), so a proved outcome is not asked about again.
    options = StorageOptions(trust_rollbacks=False)
    storage = PumpStorage(tmp_path, options)
    store(storage, prewrite(100), rollback(100), prewrite(200), rollback(200), build.build_fake(300))
    resolver = Resolver(storage, Answers({100: RolledBack(), 200: Unknown("no record")}))
    ask_until(
        resolver, lambda: [entry.start_ts for entry in storage.list_waiting_prewrites()] == [200], "one is proved"
    )
    storage.close()
    for lost in (False, True):
        if lost:
            shutil.rmtree(tmp_path / "kv")
        storage = PumpStorage(tmp_path, options)
        assert [entry.start_ts for entry in storage.list_doubted_prewrites()] == [200]
        storage.close()
    storage = PumpStorage(tmp_path)  # without a source, an R is trusted
    reach(storage, 300)
    assert storage.count_unmatched() == (0, 0)
    storage.close()


def test_a_commit_ends_a_doubt(doubting: PumpStorage) -> None:
    store(doubting, prewrite(100), rollback(100), commit(100, 150))
    reach(doubting, 150)
    assert (doubting.list_doubted_prewrites(), doubting.counters.late_commits) == ([], 0)
    assert [ts for _, ts, _ in settled(doubting)] == [150]


def test_age_is_measured_by_timestamps_and_no_prewrite_is_discarded(storage: PumpStorage) -> None:
    # S0-51, U-08: after the timeout a prewrite is reported as overdue; only a proof ends it.
    assert TXN_TIMEOUT_S == 600
    begin = tso.compose(1_000_000)
    source = Answers({begin: Unknown("neither lock nor write record")})
    resolver = Resolver(storage, source, timeout_s=2.0)
    for age_s, late in ((1, False), (3, True)):
        now = tso.compose(1_000_000 + age_s * 1000)
        store(storage, *([prewrite(begin)] if age_s == 1 else []), build.build_fake(now))
        until(lambda: storage.count_unmatched() == (1, begin), "it waits")
        resolver.resolve_waiting()
        resolver.resolve_waiting()
        assert ("beyond the transaction timeout of 2 s" in resolver.blocked) is late
        assert (resolver.overdue, storage.watermark) == (int(late), 0)
    source.answers[begin] = Locked(20_000)
    resolver.resolve_waiting()
    assert "ttl 20000" in resolver.blocked
    assert storage.watermark == 0
    source.answers[begin] = RolledBack()
    resolver.resolve_waiting()
    reach(storage, tso.compose(1_003_000))


def test_many_rollbacks_are_verified_at_once(doubting: PumpStorage) -> None:
    # R are common (1 to 15 % of transactions), so they must not stop the watermark for long.
    starts = range(1000, 4000, 3)
    source = Answers({start: RolledBack() for start in starts})
    resolver = Resolver(doubting, source)
    for start in starts:
        doubting.append(prewrite(start).SerializeToString())
        doubting.append(rollback(start).SerializeToString())
    store(doubting, build.build_fake(9000))
    ask_until(resolver, lambda: doubting.watermark == 9000, "all are proved")
    assert resolver.counters.rolled_back == len(starts)
    resolver.close()


def test_a_proved_outcome_is_not_asked_about_again_before_the_sorter_reads_it(
    doubting: PumpStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such a P was stored, and counted, again in each round.
    resolver = Resolver(doubting, Answers({100: RolledBack()}))
    store(doubting, prewrite(100), rollback(100))
    until(lambda: len(doubting.list_doubted_prewrites()) == 1, "it waits")
    listed = doubting.list_doubted_prewrites()
    monkeypatch.setattr(doubting, "list_doubted_prewrites", lambda *_: listed)
    for _ in range(2):
        resolver._doubts.clear()
        resolver.verify_rollbacks()
        resolver.resolve_waiting()
    assert (resolver.queries, resolver.counters.rolled_back) == (1, 1)
    monkeypatch.setattr(doubting, "list_doubted_prewrites", lambda *_: [])
    until(lambda: not doubting.list_waiting_prewrites(), "the sorter has read it")
    resolver.resolve_waiting()
    assert resolver._ended == set()
    resolver.close()


def test_a_decision_by_command_is_a_proof(doubting: PumpStorage) -> None:
    # if no source knows the outcome, an operator decides, also about a P whose R nobody can prove.
    verdict = PrewriteVerdict(doubting, Answers({100: Unknown("collected"), 200: Unknown("collected")}), PumpMetrics())
    store(doubting, prewrite(100), rollback(100), prewrite(200), rollback(200), build.build_fake(300))
    until(lambda: len(doubting.list_doubted_prewrites()) == 2, "both wait")
    verdict.decide(100, 0)
    verdict.decide(200, 310)
    reach(doubting, 310)
    assert [(start, ts) for start, ts, _ in settled(doubting)] == [(300, 300), (200, 310)]
