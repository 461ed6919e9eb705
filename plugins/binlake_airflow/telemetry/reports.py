"""What a stage reports to people and other systems: XCom, the run's note, metrics, assets, alerts about lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from binlake import tso
from binlake.config import Replication
from binlake.pipeline import STOPPED, name_feed_sink, name_task
from binlake_airflow.jobs import CHANGED, find_feed_of_result, pull_result
from binlake_airflow.telemetry import alerts, assets, metrics
from binlake_airflow.telemetry.notes import NOTE_KEY

Result = Mapping[str, Any]
BLOCKED_BY = "blocked_by"
_LETTERS, _REASON = 1000, 200
"""Most characters of a run's note, and of its text about one feed."""


class StageTask(Protocol):
    """A task that runs one stage of a replication's window, or all of them (StageOperator)."""

    replication: str
    moves_assets: str
    bounds_from: str | None

    @property
    def log(self) -> Any:
        """Airflow's logger of the task."""

    def read_settings(self) -> Replication:
        """The replication, read again."""


_LAG_OF = {"plan": ("landing", "lo"), "finalize": ("sql", "hi"), "publish": ("feed", "hi")}


def report_stages(
    task: StageTask, results: Sequence[Result], changed: Sequence[Sequence[str]], context: Mapping[str, Any]
) -> None:
    """Report the stage or stages of one window that `task` has run; `changed`: tables of the target, as (db, table)."""
    done = {result["stage"]: result for result in results if result["state"] == "done"}
    if task.moves_assets in done:
        # First of all: a later try would find the window already applied and emit no events.
        assets.emit_events(task.replication, done[task.moves_assets], changed, context)
    for result in results:
        if result["stage"] == "publish" and result["state"] == "done":
            assets.emit_feed_event(task.replication, result, context)
    skew_ms = metrics.find_skew_ms(_find_plan(results, context))
    metrics.send(task.replication, results, skew_ms)
    _warn(task, results, skew_ms, context)


def _find_plan(results: Sequence[Result], context: Mapping[str, Any]) -> Result | None:
    """The result of plan: of the same job, or of its own task, which may be none of this run."""
    own = next((result for result in results if result["stage"] == "plan"), None)
    return own if own is not None else pull_result(context["ti"], "plan")


def report_run(task: StageTask, results: Sequence[Result], context: Mapping[str, Any]) -> None:
    """Leave the range and the note of the run in XCom; `results`: of all its windows."""
    first, last, ti = results[0], _find_last(results), context["ti"]
    ti.xcom_push(key="window", value=f"{first['lo']}-{max(first['hi'], last['hi'], key=int)}")
    if first["blocked_by"] or (first["stage"] == "plan" and first["state"] == "waiting"):
        report_blocked(first, context, task.log)
    elif last["state"] not in STOPPED:
        ti.xcom_push(key=NOTE_KEY, value=(format_note_of_results(results) + _describe_waiting(results, ti))[:_LETTERS])


def find_changed_tables(
    task: StageTask, results: Sequence[Result], context: Mapping[str, Any]
) -> Sequence[Sequence[str]]:
    """(db, table) at the target that the window of `results` changed, as far as a stage reported them.

    They are reported by the sink that emits the replication's events: by compact for the SQL sink, or by the mirrors if
    there is no SQL sink.
    """
    done = {result["stage"]: result for result in results if result["state"] == "done"}
    if task.moves_assets not in done:
        return ()
    for name in ("compact", "mirror"):
        # A run may have several windows: take the tables of all of them.
        named = [result["detail"][CHANGED] for result in results if result["stage"] == name and _names_tables(result)]
        if named:
            return sorted({(db, table) for tables in named for db, table in tables})
    found = pull_result(context["ti"], task.bounds_from) if task.bounds_from is not None else None
    return list((found or {}).get("detail", {}).get(CHANGED) or ())


def _names_tables(result: Result) -> bool:
    return result["state"] == "done" and CHANGED in result["detail"]


def report_blocked(result: Result, context: Mapping[str, Any], log: Any) -> None:
    """Store what blocks the window where the run's page shows it."""
    reason = result["detail"].get("reason", "")
    log.warning("window_not_planned", state=result["state"], blocked_by=result["blocked_by"], reason=reason)
    if result["blocked_by"]:
        context["ti"].xcom_push(key=BLOCKED_BY, value=result["blocked_by"])
    context["ti"].xcom_push(
        key=NOTE_KEY, value=f"{result['state']} at {format_ts_with_time(result['lo'])}: {reason}"[:1000]
    )


def report_source_gone(value: Result, context: Mapping[str, Any]) -> None:
    """As `report_blocked`, if PD does not answer."""
    context["ti"].xcom_push(key=BLOCKED_BY, value=value["blocked_by"])
    context["ti"].xcom_push(key=NOTE_KEY, value=f"upstream unavailable: {value['reason']}"[:1000])


def format_note_of_results(results: Sequence[Result]) -> str:
    """One line: the range of the last stage as commit_ts and as time, and the rows of each stage in all windows."""
    last, rows = _find_last(results), Counter[str]()
    for result in results:
        if result["stage"] != "plan" and not _describe_skipped_feed(result):
            rows[_find_task_name(result)] += result["rows"]
    first = next(result for result in results if result["stage"] == last["stage"])
    counts = ", ".join(f"{stage} {count:,} rows" for stage, count in rows.items())
    text = f"window ({format_ts_with_time(first['lo'])}, {format_ts_with_time(last['hi'])}]" + (
        f": {counts}" if counts else ""
    )
    return (text + "".join(_describe_skipped_feed(one) for one in results))[:_LETTERS]


def _describe_waiting(results: Sequence[Result], ti: Any) -> str:
    """The DDL that waits according to compact, which is another task if each stage is one: the last note counts."""
    details = [result["detail"] for result in results if result["stage"] == "compact"]
    if len(results) == 1 and results[0]["stage"] in ("convert", "finalize"):
        details = [(pull_result(ti, "compact") or {}).get("detail", {})]
    # Imported late: not needed for DAG parsing.
    from binlake.window.cuts import describe_waiting_ddl

    return "".join(f"; {text}" for text in map(describe_waiting_ddl, details[-1:]) if text)


def _find_last(results: Sequence[Result]) -> Result:
    """The last result that is not of a skipped feed; if there is none, the last result."""
    return next((result for result in reversed(results) if not _describe_skipped_feed(result)), results[-1])


def _describe_skipped_feed(result: Result) -> str:
    if not find_feed_of_result(result) or result["state"] not in ("failed", "skipped", "waiting"):
        return ""
    return f"; {_find_task_name(result)} {result['state']}: {str(result['detail'].get('reason', ''))[:_REASON]}"


def is_left_out(result: Result) -> bool:
    """Whether a feed's stage failed in a window whose other sinks continued."""
    return bool(result["state"] == "failed")


def _find_task_name(result: Result) -> str:
    feed = find_feed_of_result(result)
    return name_task(result["stage"], name_feed_sink(feed) if feed else None)


def format_ts_with_time(commit_ts: str) -> str:
    """A commit_ts with its UTC time."""
    time = tso.to_datetime(int(commit_ts)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{commit_ts} = {time}"


def _warn(task: StageTask, results: Sequence[Result], skew_ms: int, context: Mapping[str, Any]) -> None:
    settings = task.read_settings()
    for result in results:
        try:
            _warn_of_lag(settings, result, skew_ms, context)
            _warn_of_silence(settings, result, context)
            _warn_of_tables(settings, result, context)
            _warn_of_validation(settings, result, context)
            _warn_of_waiting_ddl(settings, result, context)
            _warn_of_feed(settings, result, context)
        except Exception:
            # The window is done; a lag that cannot be notified must not make it run again.
            task.log.exception("alert_failed", stage=result["stage"])


def _warn_of_lag(settings: Replication, result: Result, skew_ms: int, context: Mapping[str, Any]) -> None:
    rule, (what, side) = settings.airflow.on_lag, _LAG_OF.get(result["stage"], ("", ""))
    if rule is None or not what or not metrics.is_position(result):
        return
    if what == "feed":
        if result["state"] != "done":
            return
        what = f"feed-{result['detail']['feed']}"
    alerts.notify_lag(rule, settings.name, what, metrics.compute_lag_s(result[side], skew_ms), context)


def _warn_of_tables(settings: Replication, result: Result, context: Mapping[str, Any]) -> None:
    """Notify of a successful run in which a target table was set aside by policy, or was found to differ."""
    rule, detail = settings.airflow.on_failure, result["detail"]
    if rule is None or result["stage"] != "finalize":
        return
    different = [one["table"] for one in detail.get("verified_after_ddl", ()) if one["state"] == "different"]
    for what, tables in (("set-aside", detail.get("put_aside", ())), ("different", different)):
        if tables:
            details = {"replication": settings.name, "what": what, "tables": list(tables)}
            alerts.notify(rule, {**context, "binlake": details})


def _warn_of_validation(settings: Replication, result: Result, context: Mapping[str, Any]) -> None:
    """Notify of a successful run in which validation found new rows that differ at the target."""
    rule, detail = settings.airflow.on_failure, result["detail"]
    if rule is not None and result["stage"] == "validate" and detail.get("found"):
        tables = sorted({one["table"] for one in detail["listed"]})
        details = {"replication": settings.name, "what": "validation", "errors": detail["errors"], "tables": tables}
        alerts.notify(rule, {**context, "binlake": details})


def _warn_of_waiting_ddl(settings: Replication, result: Result, context: Mapping[str, Any]) -> None:
    """Notify of a successful run whose window ends below a DDL that needs a person's choice."""
    rule, waits = settings.airflow.on_failure, result["detail"].get("waits_for_ddl")
    if rule is not None and result["stage"] == "compact" and waits:
        details = {"replication": settings.name, "what": "ddl-waits", "commit_ts": waits["commit_ts"],
                   "reason": waits["text"]}  # fmt: skip
        alerts.notify(rule, {**context, "binlake": details})


def _warn_of_feed(settings: Replication, result: Result, context: Mapping[str, Any]) -> None:
    """Notify of a successful run that left out a failed feed: in the fused layout a feed does not fail the task."""
    rule, detail = settings.airflow.on_failure, result["detail"]
    if rule is not None and is_left_out(result):
        text = f"{settings.name}: {_find_task_name(result)} failed: {detail['reason']}"
        details = {"replication": settings.name, "what": "feed-failed", "feed": detail["feed"], "text": text}
        alerts.notify(rule, {**context, "binlake": details})


def _warn_of_silence(settings: Replication, result: Result, context: Mapping[str, Any]) -> None:
    """Notify if windows have landed nothing for too long while commit time advanced."""
    rule = settings.airflow.on_silence
    if rule is None or result["stage"] != "land" or result["rows"]:
        return
    # Imported late: delta-rs is not needed for DAG parsing.
    from binlake.lake.paths import LakePaths
    from binlake.lake.windowlog import WindowLog

    since = WindowLog(LakePaths.of(settings)).find_silence_start()
    if since is not None:
        alerts.notify_silence(rule, settings.name, since, int(result["hi"]), context)
