"""Every notification says what, since when, what to do, and where the page is."""

from __future__ import annotations

from typing import Any

import pytest

from binlake_airflow.telemetry.alerts import complete

pytestmark = pytest.mark.airflow

SINCE = "470583292723200000"


@pytest.mark.parametrize(
    ("details", "said", "todo"),
    [({"what": "landing", "lag_seconds": 720.0}, "the lake is 12 min behind the source", "binlake status"),
     ({"what": "sql", "lag_seconds": 61.0}, "the target is 61 s behind the source", "binlake status"),
     ({"what": "feed-kafka", "lag_seconds": 90.0}, "the feed kafka is 90 s behind the source", "binlake status"),
     ({"what": "silence", "since": SINCE, "silent_seconds": 7200.0},
      "no transaction for 2 h of commit time, since 2026-11-20T00:00:00+00:00", "binlogs"),
     ({"what": "set-aside", "tables": ["d.a", "d.b"]}, "set aside, because the target refuses them: d.a, d.b", "back"),
     ({"what": "different", "tables": ["d.a"]}, "different from the source after a DDL: d.a", "repair"),
     ({"what": "validation", "errors": 3, "tables": ["d.a"]}, "3 rows of the target differ, in d.a", "repair"),
     ({"what": "ddl-waits", "commit_ts": SINCE, "reason": "RECOVER TABLE"},
      f"the DDL at commit_ts {SINCE} waits for a person: RECOVER TABLE", "binlake ddl replace"),
     ({"what": "failure", "text": "orders: run r failed\nland failed: why"}, "run r failed\nland failed: why", "page")],
    ids=["lake", "target", "feed", "silence", "aside", "different", "validation", "ddl", "failure"],
)  # fmt: skip
def test_notification_is_complete(
    monkeypatch: pytest.MonkeyPatch, details: dict[str, Any], said: str, todo: str
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/here/")
    told = complete({"replication": "orders", **details})
    assert told["text"].startswith(f"orders: {said}"), told["text"]
    assert todo in told["todo"]
    assert f"\nWhat to do: {told['todo']}\n" in told["text"]
    assert told["page"] == "https://airflow.example/here/binlake/dags/orders"
    assert told["text"].endswith(told["page"])
    # What a notifier's own template uses is still there.
    assert {name: told[name] for name in details if name != "text"} == {k: v for k, v in details.items() if k != "text"}


def test_without_airflows_address_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "")
    told = complete({"replication": "orders", "what": "different", "tables": ["d.a"]})
    assert (told["page"], told["text"].count("\n")) == ("", 1)
