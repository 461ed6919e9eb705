"""What the pages show of the table `window`."""

import json
from collections.abc import Sequence
from typing import Any

from binlake.cluster.source.hearing import HeardSource, Hearing
from binlake.config import Replication
from binlake.health.positions import build_status_view
from binlake.health.values import format_utc
from binlake_airflow.pages.history import (
    PAGE,
    build_checkpoints_view,
    build_notices_view,
    build_run_view,
    build_windows_view,
)

T0 = 449_000_000_000_000_001
NOW_MS = (T0 >> 18) + 60_000
HEARD = Hearing((HeardSource("s", "feeder", "reading", True, lag_s=0.0),))
REPLICATION = Replication.model_validate({"name": "orders", "lake": {"path": "/l"}, "target": {}})


def event(stage: str, lo: int, hi: int, state: str = "done", at: int = 0, **more: Any) -> dict[str, Any]:
    return {"stage": stage, "lo": lo, "hi": hi, "state": state, "rows": 10, "seconds": 1.256, "run_id": "r", "sink": "",
            "at_ms": at, "blocked_by": "", "detail": "{}", "manifest": "", **more}  # fmt: skip


def test_run_shows_its_window_and_each_stage() -> None:
    # land lowered hi, so the run's window is what landed.
    view = build_run_view(
        [event("plan", T0, T0 + 9, "ready"), event("land", T0, T0 + 5), event("merge", T0, T0 + 5)], "r"
    )
    assert view["window"]["hi"]["commit_ts"] == str(T0 + 5)
    assert view["window"]["hi"]["time"].startswith("2024-")
    assert [(row["stage"], row["rows"], row["seconds"]) for row in view["stages"]] == [
        ("plan", 10, 1.26), ("land", 10, 1.26), ("merge", 10, 1.26),
    ]  # fmt: skip
    assert view["seconds"] == 3.78


def test_a_stage_on_spark_links_to_its_pages_if_they_are_known() -> None:  # 34
    details: list[dict[str, Any]] = [{}, {"spark_tasks": 1234}]
    details += [{"spark_tasks": 2, "spark_pages": pages} for pages in ("http://spark:4040", "javascript:alert(1)")]
    view = build_run_view([event("land", T0, T0 + 5, detail=json.dumps(detail)) for detail in details], "r")
    assert [(row["engine"], row["engine_url"]) for row in view["stages"]] == [
        ("", ""), ("Spark, 1,234 tasks", ""), ("Spark, 2 tasks", "http://spark:4040"), ("Spark, 2 tasks", ""),
    ]  # fmt: skip


def test_run_of_several_windows_shows_their_range() -> None:
    windows = [(T0, T0 + 5), (T0 + 5, T0 + 7), (T0 + 7, T0 + 9)]
    view = build_run_view([event(stage, *window) for window in windows for stage in ("land", "merge")], "r")
    assert [view["window"][side]["commit_ts"] for side in ("lo", "hi")] == [str(T0), str(T0 + 9)]
    assert len(view["stages"]) == 6


def test_blocked_run_names_the_blocking_pump() -> None:
    # S0-56
    why = f'{{"reason": "pump-2 since {T0} (online, watermark 5)"}}'
    view = build_run_view([event("plan", T0, T0, "blocked", blocked_by="pump-2", detail=why)], "r")
    assert view["blocked"] == {"by": "pump-2", "reason": f"pump-2 since {T0} (online, watermark 5)"}
    assert build_run_view([event("land", T0, T0 + 5)], "r")["blocked"] is None


def test_run_that_has_done_nothing_has_no_window() -> None:
    assert build_run_view([], "r")["window"] is None
    assert build_run_view([event("start", T0, T0)], "r")["window"] is None


class Log:
    """Events as the table `window` returns them."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = list(events)

    def read_events(self, *, stage: str | None = None, within: tuple[int, int]) -> list[dict[str, Any]]:
        found = [e for e in self._events if e["lo"] < within[1] and e["hi"] > within[0]]
        return [e for e in found if stage in (None, e["stage"])]

    def read_newest(
        self,
        stages: Sequence[str],
        count: int,
        upto: int | None = None,
        states: Sequence[str] | None = ("done", "already"),
    ) -> list[dict[str, Any]]:
        found = [e for e in self._events if e["stage"] in stages and (states is None or e["state"] in states)]
        return sorted((e for e in found if upto is None or e["hi"] <= upto), key=lambda e: -e["hi"])[:count]

    def read_last_event(self, stages: Sequence[str]) -> dict[str, Any] | None:
        return next(iter(self.read_last_events(stages, 1)), None)

    def read_last_events(
        self, stages: Sequence[str], count: int, states: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        found = [e for e in self._events if e["stage"] in stages and (states is None or e["state"] in states)]
        return sorted(found, key=lambda e: -e["at_ms"])[:count]


def test_positions_and_lag_of_lake_and_sinks() -> None:
    # U-02
    log = Log(event("land", T0, T0 + 5), event("land", T0 + 5, T0 + 9), event("finalize", T0, T0 + 5),
              event("mirror", T0, T0 + 9, "already"), event("finalize", T0 + 5, T0 + 9, "failed"))  # fmt: skip
    view = build_status_view(REPLICATION, log, NOW_MS, HEARD)
    assert (view["landed"]["commit_ts"], view["landed"]["lag_seconds"]) == (str(T0 + 9), 60.0)
    assert view["sinks"]["sql"]["commit_ts"] == str(T0 + 5)
    assert view["sinks"]["mirror"]["commit_ts"] == str(T0 + 9)
    assert view["state"] == "running"
    # A source clock ahead of ours does not give a negative lag.
    assert build_status_view(REPLICATION, log, 0, HEARD)["landed"]["lag_seconds"] == 0


def test_empty_lake_has_no_positions() -> None:
    view = build_status_view(REPLICATION, Log(), NOW_MS, HEARD)
    assert (view["landed"], view["sinks"], view["state"]) == (None, {"sql": None, "mirror": None}, "empty")
    assert build_windows_view(REPLICATION, Log())["windows"] == []
    assert build_checkpoints_view(Log()) == {"checkpoints": [], "older": None}


def test_advancing_time_without_rows_is_shown() -> None:
    # U-25
    quiet = [event("land", T0 + i, T0 + i + 1, rows=0) for i in range(1, 5)]
    assert build_status_view(REPLICATION, Log(*quiet), NOW_MS, HEARD)["rows"] == {"window": None, "looked_at": 4}
    last = build_status_view(REPLICATION, Log(event("land", T0, T0 + 1), *quiet), NOW_MS, HEARD)["rows"]
    assert last["window"]["commit_ts"] == str(T0 + 1)


def test_blocked_state_lasts_until_something_lands() -> None:
    # U-01
    before = event("plan", T0, T0, "ready", at=1000)
    blocked = [event("plan", T0, T0, "blocked", at=at, blocked_by="pump-2") for at in (2000, 3000, 4000)]
    view = build_status_view(REPLICATION, Log(before, *blocked), NOW_MS, HEARD)
    assert view["blocked"] == {"by": "pump-2", "reason": "", "since": "1970-01-01T00:00:02+00:00",
                               "since_ms": 2000}  # fmt: skip
    assert view["state"] == "blocked"
    later = event("land", T0, T0 + 5, at=5000)
    assert build_status_view(REPLICATION, Log(before, *blocked, later), NOW_MS, HEARD)["blocked"] is None


def test_important_notices_are_listed_with_the_newest_first() -> None:
    # U-12, U-15: an operator's interventions in the stream are included, and stay.
    lost = event("forget", T0, T0 + 5, "accepted-loss", at=1000, detail='{"pump": "p1", "lost": "(1, 2]"}')
    skipped = event("skip", T0 + 1, T0 + 2, at=3000, detail=f'{{"commit_ts": "{T0 + 2}"}}')
    mended = [event("backfill", T0, T0 + 3, state, at=2000) for state in ("done", "finished")]
    released = event("release", T0, T0 + 9, "released", at=4000)
    found = build_notices_view(Log(lost, skipped, *mended, event("land", T0, T0 + 1, at=9000), released))
    assert [notice["what"] for notice in found] == ["release", "skip", "backfill", "forget"]
    assert found[1]["detail"] == {"commit_ts": str(T0 + 2)}
    assert str(T0 + 2) in found[1]["text"]
    assert found[-1] == {"at": "1970-01-01T00:00:01+00:00", "what": "forget", "window": f"{T0}-{T0 + 5}",
                         "text": "The pump p1 was given up; its binlogs with commit_ts (1, 2] are lost.",
                         "detail": {"lost": "(1, 2]", "pump": "p1"}}  # fmt: skip


def test_windows_are_paged_with_the_newest_event_of_each_stage() -> None:
    many = [event("land", T0 + i, T0 + i + 1, at=i) for i in range(PAGE + 5)]
    last = T0 + PAGE + 5
    # The sink took three windows as one, so its position is the newest of them.
    sink = [event("finalize", last - 3, last, "done", 900), event("finalize", last - 3, last, "already", 901, rows=0)]
    view = build_windows_view(REPLICATION, Log(*many, *sink))
    windows = view["windows"]
    assert len(windows) == PAGE
    assert windows[0]["hi"]["commit_ts"] == str(last)
    assert windows[0]["stages"]["finalize"]["state"] == "already"
    assert "finalize" not in windows[1]["stages"]
    assert view["older"] == str(T0 + 5)
    rest = build_windows_view(REPLICATION, Log(*many, *sink), int(view["older"]))
    assert [window["hi"]["commit_ts"] for window in rest["windows"]] == [str(T0 + i) for i in (5, 4, 3, 2, 1)]
    assert rest["older"] is None


def test_checkpoint_history_is_paged() -> None:
    log = Log(*(event("finalize", T0 + i, T0 + i + 1, detail='{"segments": 2, "batches": 7}') for i in range(3)))
    view = build_checkpoints_view(log, count=2)
    assert [row["hi"]["commit_ts"] for row in view["checkpoints"]] == [str(T0 + 3), str(T0 + 2)]
    assert view["checkpoints"][0]["detail"] == "2 segments, 7 batches"
    assert view["older"] == str(T0 + 1)


def test_pages_of_repeated_windows_advance_and_omit_nothing() -> None:
    again = [event("finalize", T0 + 1, T0 + 2, "already", at) for at in range(4)]
    log = Log(event("finalize", T0, T0 + 1), *again, event("finalize", T0 + 2, T0 + 3))
    view = build_checkpoints_view(log, count=2)
    assert [row["hi"]["commit_ts"] for row in view["checkpoints"]] == [str(T0 + 3)] + 4 * [str(T0 + 2)]
    assert view["older"] == str(T0 + 1)
    landed = [event("land", T0 + 1, T0 + 2, "already", at) for at in range(PAGE + 1)]
    windows = build_windows_view(REPLICATION, Log(event("land", T0, T0 + 1), *landed))
    assert (len(windows["windows"]), windows["older"]) == (1, str(T0 + 1))


def test_table_aside_is_named_until_it_is_back() -> None:  # U-16
    def event_of(table: str, state: str, at: int) -> dict[str, Any]:
        detail = json.dumps({"table": table, "since": str(T0), "by": "policy", "reason": "missing", "at": str(at)})
        return event("aside", T0, T0 + 5, state, at, detail=detail)

    log = Log(event_of("d.a", "set-aside", 1), event_of("d.b", "set-aside", 2), event_of("d.A", "back", 3))
    [one] = build_status_view(REPLICATION, log, NOW_MS, HEARD)["set_aside"]
    assert (one["table"], one["since"]["commit_ts"], one["reason"]) == ("d.b", str(T0), "missing")
    assert [notice["what"] for notice in build_notices_view(log)] == ["aside"] * 3


def test_rows_waiting_for_another_shard_are_named() -> None:  # R-15 S4-53
    lock = {"table": "all.t", "since": str(T0), "seconds": "60", "held": "s1.t_1, s3.t_3"}
    detail = json.dumps({"shard_locks": [lock]})
    log = Log(event("merge", T0, T0 + 5, "done", 1, detail=detail))
    [one] = build_status_view(REPLICATION, log, NOW_MS, HEARD)["shard_locks"]
    assert (one["table"], one["since"]["commit_ts"], one["held"]) == ("all.t", str(T0), "s1.t_1, s3.t_3")
    log = Log(event("merge", T0, T0 + 5, "done", 1, detail=detail), event("merge", T0 + 5, T0 + 6, "done", 2))
    assert build_status_view(REPLICATION, log, NOW_MS, HEARD)["shard_locks"] == []


def test_result_of_a_verify_after_ddl_is_a_notice_but_a_due_one_is_not() -> None:
    found = Log(event("verify-ddl", T0, T0, "due", 1), event("verify-ddl", T0, T0, "different", 2))
    assert [notice["at"] for notice in build_notices_view(found)] == [format_utc(2)]
