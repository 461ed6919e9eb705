"""Whether sources are heard, from what their status ports say."""

from __future__ import annotations

from typing import Any

import pytest

from binlake.cluster.source.hearing import HEARTBEAT_LIMIT_S, HeardSource, Hearing, combine, listen, parse_feeder
from binlake.pump_service.statusport import StatusServer

READING: dict[str, Any] = {"source": "s1", "state": "reading", "heard": True, "heard_s": 0.5, "lag_s": 0.0}
FEEDER = "http://f:10080"
TIDB = [HeardSource("TiDB t:10080", "tidb", "running", True, lag_s=0.0, heard_s=0.0)]


def feeder(**more: Any) -> list[HeardSource]:
    return parse_feeder({"sources": [{**READING, **more}]})


@pytest.mark.parametrize(
    ("answers", "heartbeats", "lag_s"),
    [
        ([(FEEDER, feeder())], {}, 0.0),
        ([(FEEDER, feeder(lag_s=7.5))], {}, 7.5),
        ([(FEEDER, [*feeder(lag_s=2.0), *feeder(lag_s=3.0)])], {}, 3.0),
        ([(FEEDER, feeder(heard=False))], {}, None),
        ([(FEEDER, feeder(state="loading", lag_s=3.0))], {}, None),
        ([(FEEDER, feeder(state="failed"))], {}, None),
        ([(FEEDER, [*feeder(), *feeder(heard=False)])], {}, None),
        ([(FEEDER, [])], {}, None),
        ([(FEEDER, None)], {}, None),
        ([(FEEDER, feeder()), ("http://g:1", None)], {}, None),
        ([("http://t:1", TIDB)], {}, 0.0),
        # one server of a TiDB is enough
        ([("http://t:1", TIDB), ("http://u:1", None)], {}, 0.0),
        # the page's machine reaches PD only
        ([("http://t:1", None)], {"t:4000": 20.0}, 0.0),
        ([("http://t:1", None)], {"t:4000": HEARTBEAT_LIMIT_S + 1}, None),
        ([(FEEDER, feeder(heard=False)), ("http://t:1", TIDB)], {}, None),
        ([], {}, None),
    ],
)  # fmt: skip
def test_lag_is_known_only_while_every_source_is_heard(
    answers: list[tuple[str, list[HeardSource] | None]], heartbeats: dict[str, float], lag_s: float | None
) -> None:
    hearing = combine(answers, heartbeats)
    assert (hearing.is_heard, hearing.lag_s) == (lag_s is not None, lag_s)


def test_older_feeder_is_heard_while_it_has_no_trouble() -> None:
    older = {"source": "s1", "state": "reading", "lag_s": 1.0, "file": "log.1", "offset": 4}
    [source] = parse_feeder({"sources": [older]})
    assert (source.is_heard, source.position, source.lag_s) == (True, "log.1:4", 1.0)
    [source] = parse_feeder({"sources": [{**older, "trouble": "the server ended the connection"}]})
    assert (source.is_heard, source.lag_s) == (False, None)


def test_reader_is_as_far_behind_as_the_source_or_the_clock_says() -> None:
    near, far = Hearing(tuple(feeder())), Hearing(tuple(feeder(lag_s=60.0)))
    assert (near.measure_lag_s(1_000, 6_000), far.measure_lag_s(1_000, 6_000)) == (5.0, 60.0)
    # another machine's clock is ahead
    assert near.measure_lag_s(9_000, 6_000) == 0.0
    assert Hearing().measure_lag_s(1_000, 6_000) is None


class Nothing:
    """A TiDB without transactions and DDL."""

    def answer(self, _key: bytes, _now: int) -> dict[str, Any]:
        return {}

    def list_finished_jobs(self, _now: int, _start_job_id: int = 0, _limit: int = 0) -> list[dict[str, Any]]:
        return []


def test_tidb_is_heard_until_its_status_port_is_silent() -> None:
    nothing = Nothing()
    with StatusServer({"version": "8.0.11-TiDB-v7.5.0"}, nothing, nothing, lambda: 1) as server:
        hearing = listen([server.url], 5.0)
        assert (hearing.is_heard, [source.kind for source in hearing.sources]) == (True, ["tidb"])
    hearing = listen([server.url], 5.0)
    assert (hearing.is_heard, hearing.silent) == (False, (server.url,))


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"sources": 3}', '{"sources": [{}]}', "<html>"])
def test_unreadable_page_is_not_a_feeder(body: str) -> None:
    nothing = Nothing()
    pages = {"/feeder": lambda: (body, "application/json")}
    with StatusServer({"version": "x"}, nothing, nothing, lambda: 1, pages=pages) as server:
        assert [source.kind for source in listen([server.url], 5.0).sources] == ["tidb"]
