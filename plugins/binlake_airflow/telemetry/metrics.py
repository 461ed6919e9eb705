"""Metrics of a window, by replication, through Airflow's own metrics (StatsD, OTLP, Datadog: as `[metrics]` says).

Gauges: `binlake.<replication>.lag_seconds` (the SQL sink), `.landed_lag_seconds`, `.mirror_lag_seconds`; their
positions in Unix seconds of commit time, whose age grows even if nothing runs any longer:
`.checkpoint_timestamp_seconds`, `.landed_timestamp_seconds`, `.mirror_timestamp_seconds`; `.blocked` (0 or 1);
`.set_aside` (the target's tables that are set aside); `.shard_lock_seconds`; `.validation_errors`,
`.validation_pending` (rows). For each stage the timing `.<stage>.seconds` and the counter `.<stage>.rows`. For each
feed, below `binlake.<replication>.feed.<feed>`: gauges `.state` (FEED_STATES), `.lag_seconds`, `.timestamp_seconds`;
counters `.messages`, `.bytes`.

Lags are by PD's clock, as plan has measured it. If metrics cannot be sent, the task does not fail, because its work is
done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from airflow.sdk.observability import stats
from opentelemetry import metrics as otel

from binlake import tso
from binlake.pipeline import ENDED, LAKE, SQL, Sink, list_places
from binlake_airflow.jobs import find_feed_of_result

Result = Mapping[str, Any]
_GAUGES = {
    LAKE.name: ("landed_lag_seconds", "landed_timestamp_seconds"),
    SQL.name: ("lag_seconds", "checkpoint_timestamp_seconds"),
}
"""The gauges for a place's lag and the commit time of its position; for other sinks they begin with the sink's name."""
FEED_STATES = {"normal": 0, "stopped": 1, "error": 2, "finished": 3, "removed": 4}
"""The values of the gauge for a feed's state."""

FLUSH_S = 5.0
"""Seconds that a task waits for its metrics to be sent."""
_FIRST_MS = 1_420_070_400_000
"""The start of 2015 in Unix ms: TiDB did not exist before."""
log = structlog.get_logger(__name__)


def compute_lag_s(commit_ts: str, skew_ms: int = 0) -> float:
    """Seconds from `commit_ts` to now; `skew_ms`: PD's clock, which made the commit_ts, minus this machine's."""
    return max(time.time() + (skew_ms - tso.extract_physical(int(commit_ts))) / 1000, 0.0)


def find_skew_ms(plan: Result | None) -> int:
    """PD's clock minus this machine's as the result of `plan` has it; 0 if it asked for no timestamp."""
    return int(((plan or {}).get("detail") or {}).get("skew_ms") or 0)


def is_position(result: Result) -> bool:
    """Whether the bounds of `result` show the replication's present position.

    False if nothing has landed yet (a start at 0 is not a time), or if a window was run again.
    """
    ts = result["lo"] if result["stage"] == "plan" else result["hi"]
    again = result["state"] == "already" or bool((result.get("detail") or {}).get("again"))
    return not again and tso.extract_physical(int(ts)) >= _FIRST_MS


def send(replication: str, results: Sequence[Result], skew_ms: int = 0) -> None:
    """Send the metrics of StageResults, by PD's clock; a failure to send is only logged as a warning."""
    _send(replication, partial(emit, skew_ms=skew_ms), results)


def send_waiting(replication: str, plan: Result) -> None:
    """Report what blocks a waiting plan, and its position; its time and rows are reported when it ends."""
    _send(replication, _emit_plan, [plan])


def emit(replication: str, result: Result, skew_ms: int = 0) -> None:
    """Emit the metrics of one StageResult; `skew_ms`: PD's clock minus this machine's."""
    name, stage = f"binlake.{replication}", str(result["stage"])
    tags = {"replication": replication}
    stats.timing(f"{name}.{stage}.seconds", timedelta(seconds=result["seconds"]), tags=tags)
    stats.incr(f"{name}.{stage}.rows", int(result["rows"]), tags=tags)
    if stage == "plan":
        _emit_plan(replication, result)
    elif find_feed_of_result(result):
        _emit_feed(replication, result, skew_ms)
    elif stage == "validate":
        _emit_validation(name, result, tags)
    elif stage == "merge":
        _emit_locks(name, result, tags)
    elif (place := _find_moved(stage)) is not None and result["state"] in ENDED and is_position(result):
        _emit_position(name, place, result["hi"], tags, skew_ms)
        if stage == "finalize":
            stats.gauge(f"{name}.set_aside", len((result.get("detail") or {}).get("set_aside", ())), tags=tags)


def send_feed_state(replication: str, feed: str, state: str) -> None:
    """Report the state of a feed whose stage returned no result."""
    _send(replication, _emit_feed_state, [{"detail": {"feed": feed, "feed_state": state}}])


def flush() -> None:
    """If OpenTelemetry is used, wait until it has sent the metrics: a task's process ends before the next export.

    It waits in a thread for FLUSH_S at most, because an OTLP exporter ignores the timeout it is given and keeps
    retrying.
    """
    force_flush = getattr(otel.get_meter_provider(), "force_flush", None)
    if force_flush is None:
        return
    sending = threading.Thread(target=_flush, args=(force_flush,), name="binlake-metrics", daemon=True)
    sending.start()
    sending.join(FLUSH_S)
    if sending.is_alive():
        log.warning(
            "metrics_not_sent", waited_s=FLUSH_S, reason="the exporter has not answered; the task continues without it"
        )


def _send(replication: str, tell: Callable[[str, Result], None], results: Sequence[Result]) -> None:
    try:
        for result in results:
            tell(replication, result)
        flush()
    except Exception:  # the task's work is done, and stays so
        log.warning("metrics_not_sent", replication=replication, exc_info=True)


def _flush(force_flush: Callable[[float], object]) -> None:
    try:
        force_flush(FLUSH_S * 1000)
    except Exception:  # the task's work is done, and stays so
        log.warning("metrics_not_sent", exc_info=True)


def _emit_plan(replication: str, result: Result) -> None:
    name, tags = f"binlake.{replication}", {"replication": replication}
    stats.gauge(f"{name}.blocked", int(bool(result["blocked_by"])), tags=tags)
    if is_position(result):
        _emit_position(name, LAKE, result["lo"], tags, find_skew_ms(result))


def _emit_locks(name: str, result: Result, tags: dict[str, Any]) -> None:
    """If tables wait for each other, the commit time in seconds for which the oldest rows have waited."""
    locks = (result.get("detail") or {}).get("shard_locks")
    if locks is not None:
        stats.gauge(f"{name}.shard_lock_seconds", max((int(lock["seconds"]) for lock in locks), default=0), tags=tags)


def _emit_validation(name: str, result: Result, tags: dict[str, Any]) -> None:
    """Emit the ledger's counts; a postponed run does not know them."""
    if result["state"] == "done":
        for count in ("errors", "pending"):
            stats.gauge(f"{name}.validation_{count}", int(result["detail"][count]), tags=tags)


def _emit_feed(replication: str, result: Result, skew_ms: int) -> None:
    """Emit a feed's state and position; a stopped feed also has a position, whose age grows."""
    detail = result["detail"]
    name, tags = f"binlake.{replication}.feed.{detail['feed']}", _build_tags_of_feed(replication, result)
    _emit_feed_state(replication, result)
    checkpoint = detail.get("checkpoint")
    if result["stage"] == "publish" and result["state"] == "done":
        stats.incr(f"{name}.messages", int(result["rows"]), tags=tags)
        stats.incr(f"{name}.bytes", int(detail.get("bytes", 0)), tags=tags)
        checkpoint = result["hi"]
    if checkpoint and tso.extract_physical(int(checkpoint)) >= _FIRST_MS:
        stats.gauge(f"{name}.lag_seconds", compute_lag_s(checkpoint, skew_ms), tags=tags)
        stats.gauge(f"{name}.timestamp_seconds", tso.extract_physical(int(checkpoint)) / 1000, tags=tags)


def _emit_feed_state(replication: str, result: Result) -> None:
    state = result["detail"].get("feed_state", "normal")
    name = f"binlake.{replication}.feed.{find_feed_of_result(result)}.state"
    stats.gauge(name, FEED_STATES[state], tags=_build_tags_of_feed(replication, result))


def _build_tags_of_feed(replication: str, result: Result) -> dict[str, Any]:
    return {"replication": replication, "feed": find_feed_of_result(result)}


def _find_moved(stage: str) -> Sink | None:
    """The lake or the sink whose position the end of `stage` shows."""
    return next((place for place in list_places() if place.moved_by == stage), None)


def _emit_position(name: str, place: Sink, commit_ts: str, tags: dict[str, Any], skew_ms: int) -> None:
    lag, moment = _GAUGES.get(place.name, (f"{place.name}_lag_seconds", f"{place.name}_timestamp_seconds"))
    stats.gauge(f"{name}.{lag}", compute_lag_s(commit_ts, skew_ms), tags=tags)
    stats.gauge(f"{name}.{moment}", tso.extract_physical(int(commit_ts)) / 1000, tags=tags)
