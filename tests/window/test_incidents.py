"""New late and early commits are reported once, with the pump's name."""

from __future__ import annotations

import json

from binlake.window.events import describe_incidents, find_new_incidents
from binlake.window.plan import Member, PumpCounters


def member(node: str, uuid: str = "u", late: int = 0, early: int = 0) -> Member:
    return Member(node, "h:1", "online", 9, uuid, counters=PumpCounters(late, early, 5))


def event(**pumps: object) -> dict[str, str]:
    return {"detail": json.dumps({"pumps": pumps})}


def test_pump_without_incidents_is_not_named() -> None:
    assert find_new_incidents([member("p1")], []) == {}


def test_new_counts_are_reported_with_the_pumps_name() -> None:
    #
    found = find_new_incidents([member("p1", late=2), member("p2"), member("p3", early=1)], [])
    assert set(found) == {"p1", "p3"}
    assert found["p1"]["late_commits"] == 2
    assert found["p1"]["status_queries"] == 5
    assert describe_incidents(found) == (
        "p1: 2 late and 0 early commits since its start; p3: 0 late and 1 early commits since its start"
    )


def test_reported_incidents_are_not_reported_again() -> None:
    first = find_new_incidents([member("p1", late=2)], [])
    told = [event(**first)]
    assert find_new_incidents([member("p1", late=2)], told) == {}
    assert set(find_new_incidents([member("p1", late=3)], told)) == {"p1"}


def test_count_restarts_with_the_pump_and_another_disk_is_another_pump() -> None:
    told = [event(**find_new_incidents([member("p1", late=5)], []))]
    assert find_new_incidents([member("p1", late=0)], told) == {}
    assert set(find_new_incidents([member("p1", late=1)], told)) == {"p1"}
    assert set(find_new_incidents([member("p1", "other", late=5)], told)) == {"p1"}


def test_abandoned_transactions_are_reported_once_by_commit_ts() -> None:
    def member_that_lost(*lost: int) -> Member:
        return Member("p1", "h:1", "online", 9, "u", counters=PumpCounters(lost_commit_ts=lost))

    found = find_new_incidents([member_that_lost(150)], [])
    assert found["p1"]["lost_commit_ts"] == ["150"]
    assert describe_incidents(found).endswith("since its start, transactions given up at 150")
    assert find_new_incidents([member_that_lost(150)], [event(**found)]) == {}
    assert find_new_incidents([member_that_lost(150, 160)], [event(**found)])["p1"]["lost_commit_ts"] == ["150", "160"]
    assert (
        find_new_incidents([member_that_lost()], [event(p1={"store_uuid": "u", "late_commits": 1, "early_commits": 0})])
        == {}
    )
