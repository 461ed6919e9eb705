"""Positions of a server and of its feeder, from the answers of each kind of server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from binlake.config.servers import SourceSection
from binlake.errors import BinlakeError, SourceUnavailable, TargetRefused, WireError
from binlake.extras.validation import proof
from binlake.extras.validation.proof import (
    FeederPosition,
    LogPosition,
    find_published_ts,
    read_feeder_positions,
    read_log_position,
)
from binlake.target.session.session import TargetSession

UUID = "5d63a7ae-b0f5-11ef-bd6e-0242ac110002"


class Server:
    """Answers by the statement; an unknown one is refused."""

    place = "h:3306"

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    def fetch_value(self, sql: str) -> Any:
        result = next(answer for part, answer in self._answers.items() if part in sql)
        return None if result == "NULL" else result

    def fetch_rows(self, sql: str) -> list[tuple[Any, ...]]:
        result = next((answer for part, answer in self._answers.items() if part in sql), None)
        if result is None:
            raise TargetRefused("You have an error in your SQL syntax")
        return cast(list[tuple[Any, ...]], result)


def read(version: str, answers: dict[str, Any]) -> LogPosition:
    return read_log_position(cast(TargetSession, Server({"VERSION": version, **answers})))


@pytest.mark.parametrize(
    ("version", "answers", "position"),
    [
        ("10.11.6-MariaDB-log", {"gtid_current_pos": "0-1-9"}, LogPosition("mariadb", "0-1-9")),
        ("11.4.2-MARIADB", {"gtid_current_pos": "NULL"}, LogPosition("mariadb", "")),
        ("8.4.6", {"gtid_mode": "ON", "gtid_executed": f"{UUID}:1-7"}, LogPosition("mysql", f"{UUID}:1-7")),
        ("8.0.36", {"gtid_mode": "on", "gtid_executed": ""}, LogPosition("mysql", "")),
        (
            "8.4.6",
            {"gtid_mode": "OFF", "BINARY": [("bin.000007", "156", "", "", "")]},
            LogPosition("mysql", "", "bin.000007", 156),
        ),
        (
            "5.7.44-log",
            {"gtid_mode": "OFF_PERMISSIVE", "MASTER": [("bin.000009", 4, "", "", "")]},
            LogPosition("mysql", "", "bin.000009", 4),
        ),
    ],
    ids=["mariadb", "mariadb without gtids", "mysql", "mysql without gtids", "mysql by file", "old mysql by file"],
)
def test_each_server_reports_its_position_in_its_own_form(
    version: str, answers: dict[str, Any], position: LogPosition
) -> None:
    assert read(version, answers) == position


def test_server_without_a_log_is_named() -> None:
    with pytest.raises(SourceUnavailable, match="writes no binary log") as error:
        read("8.4.6", {"gtid_mode": "OFF", "BINARY LOG STATUS": []})
    assert error.value.where["server"] == "h:3306"


def test_positions_are_compared_by_what_they_include() -> None:
    def of(file: str, offset: int) -> LogPosition:
        return LogPosition("mysql", "", file, offset)

    assert of("bin.000010", 4).has_done(of("bin.000010", 4))
    assert of("bin.000010", 5).has_done(of("bin.000010", 4))
    assert not of("bin.000010", 4).has_done(of("bin.000010", 5))
    # A server without a log has executed nothing.
    assert not of("", 0).has_done(of("bin.000001", 0))
    assert of("bin.000001", 7).to_json() == '{"file": "bin.000001", "flavor": "mysql", "gtids": "", "offset": 7}'
    assert LogPosition.from_json(of("bin.000001", 7).to_json()) == of("bin.000001", 7)


def test_without_any_position_nothing_is_published() -> None:
    """Otherwise a proof that needs no checkpoint would always succeed at once."""
    assert find_published_ts({"a": FeederPosition("0-1-9", "", 0, 50)}, {}) == 0


class Port:
    """A status port; `closed` counts."""

    closed = 0

    def __init__(self, answer: Callable[[], bytes | None]) -> None:
        self._answer = answer

    def find(self, path: str) -> bytes | None:
        assert path == "/feeder"
        return self._answer()

    def close(self) -> None:
        Port.closed += 1


def fetch_positions(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], bytes | None]) -> dict[str, FeederPosition]:
    monkeypatch.setattr(Port, "closed", 0)
    monkeypatch.setattr(proof, "StatusPort", lambda *_: Port(answer))
    try:
        return dict(read_feeder_positions(SourceSection(status_url="http://feeder:1")))
    finally:
        assert Port.closed == 1


def test_the_feeder_reports_its_position_in_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [
        {"source": "a", "gtids": "0-1-9", "file": "bin.000003", "offset": "40", "last_commit_ts": "70"},
        # It has published nothing of this source yet.
        {"source": "b", "gtids": "", "file": "", "offset": 0},
    ]
    fetched = fetch_positions(monkeypatch, lambda: json.dumps({"sources": sources}).encode())
    assert fetched == {"a": FeederPosition("0-1-9", "bin.000003", 40, 70)}
    assert fetched["a"].to_log_position("mariadb") == LogPosition("mariadb", "0-1-9", "bin.000003", 40)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"sources": [{"source": "a", "last_commit_ts": "x", "gtids": "", "file": ""}]}']
)
def test_unreadable_status_is_an_error(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    with pytest.raises(WireError, match="the feeder's status cannot be read"):
        fetch_positions(monkeypatch, lambda: body)


def test_status_port_of_a_tidb_is_not_taken_for_a_feeder(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceUnavailable, match="does not belong to a feeder") as error:
        fetch_positions(monkeypatch, lambda: None)
    assert error.value.where["status-url"] == "http://feeder:1"


def test_port_that_does_not_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> bytes | None:
        raise SourceUnavailable("no answer")

    with pytest.raises(BinlakeError, match="no answer"):
        fetch_positions(monkeypatch, away)
