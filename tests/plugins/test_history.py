"""What the pages show of the table `window`."""

from typing import Any

from binlake.config import Replication
from binlake_airflow.history import RECENT_WINDOWS, replication_view, run_view

T0 = 449_000_000_000_000_001
NOW_MS = (T0 >> 18) + 60_000
REPLICATION = Replication.model_validate({"name": "orders", "lake": {"path": "/l"}, "target": {}})


def event(stage: str, lo: int, hi: int, state: str = "done", at: int = 0, **more: Any) -> dict[str, Any]:
    return {"stage": stage, "lo": lo, "hi": hi, "state": state, "rows": 10, "seconds": 1.256, "run_id": "r", "sink": "",
            "at_ms": at, "blocked_by": "", "detail": "{}", "manifest": "", **more}  # fmt: skip


def test_a_run_shows_its_window_and_each_stage() -> None:
    # land lowered hi: the window of the run is what landed.
    view = run_view([event("plan", T0, T0 + 9, "ready"), event("land", T0, T0 + 5), event("merge", T0, T0 + 5)], "r")
    assert view["window"]["hi"]["commit_ts"] == str(T0 + 5)
    assert view["window"]["hi"]["time"].startswith("2024-")
    assert [(row["stage"], row["rows"], row["seconds"]) for row in view["stages"]] == [
        ("plan", 10, 1.26), ("land", 10, 1.26), ("merge", 10, 1.26),
    ]  # fmt: skip
    assert view["seconds"] == 3.78


def test_a_blocked_run_names_who() -> None:
    # S0-56
    why = f'{{"reason": "pump-2 since {T0} (online, watermark 5)"}}'
    view = run_view([event("plan", T0, T0, "blocked", blocked_by="pump-2", detail=why)], "r")
    assert view["blocked"] == {"by": "pump-2", "reason": f"pump-2 since {T0} (online, watermark 5)"}
    assert run_view([event("land", T0, T0 + 5)], "r")["blocked"] is None


def test_a_run_that_has_done_nothing_has_no_window() -> None:
    assert run_view([], "r")["window"] is None
    assert run_view([event("start", T0, T0)], "r")["window"] is None


def test_positions_and_lag_of_lake_and_sinks() -> None:
    events = [event("land", T0, T0 + 5), event("land", T0 + 5, T0 + 9), event("finalize", T0, T0 + 5),
              event("mirror", T0, T0 + 9, "already"), event("finalize", T0 + 5, T0 + 9, "failed")]  # fmt: skip
    view = replication_view(REPLICATION, events, NOW_MS)
    assert (view["landed"]["commit_ts"], view["landed"]["lag_seconds"]) == (str(T0 + 9), 60.0)
    assert view["sinks"]["sql"]["commit_ts"] == str(T0 + 5)
    assert view["sinks"]["mirror"]["commit_ts"] == str(T0 + 9)
    # A source whose clock is ahead of ours is not negative lag.
    assert replication_view(REPLICATION, events, 0)["landed"]["lag_seconds"] == 0


def test_an_empty_lake_has_no_positions() -> None:
    view = replication_view(REPLICATION, [], NOW_MS)
    assert (view["landed"], view["sinks"], view["windows"]) == (None, {"sql": None, "mirror": None}, [])


def test_blocked_until_something_lands() -> None:
    blocked = event("plan", T0, T0, "blocked", at=1, blocked_by="pump-2")
    assert replication_view(REPLICATION, [blocked], NOW_MS)["blocked"] == {"by": "pump-2", "reason": ""}
    later = event("land", T0, T0 + 5, at=2)
    assert replication_view(REPLICATION, [blocked, later], NOW_MS)["blocked"] is None


def test_recent_windows_newest_first_with_the_newest_passage_of_each_stage() -> None:
    many = [event("land", T0 + i, T0 + i + 1, at=i) for i in range(RECENT_WINDOWS + 5)]
    last = T0 + RECENT_WINDOWS + 5
    # The sink took three windows as one: it stands at the newest of them.
    sink = [event("finalize", last - 3, last, "done", 900), event("finalize", last - 3, last, "already", 901, rows=0)]
    windows = replication_view(REPLICATION, [*many, *sink], NOW_MS)["windows"]
    assert len(windows) == RECENT_WINDOWS
    assert windows[0]["hi"]["commit_ts"] == str(last)
    assert windows[0]["stages"]["finalize"]["state"] == "already"
    assert "finalize" not in windows[1]["stages"]
