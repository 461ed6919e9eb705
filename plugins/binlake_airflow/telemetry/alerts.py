"""Notifications through a notifier of one of Airflow's providers, or any callable named in the configuration, and what
they say to a person: what, since when, what to do, and the address of the page.

A notifier is imported, and its arguments are resolved, only when it is called: `env:NAME` is read there, so no DAG,
XCom or page contains the values.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseNotifier

from binlake import tso
from binlake.common.terminal import format_duration
from binlake.config import load_replication
from binlake.config.airflow import NotifyOnLag, NotifyOnSilence, NotifySection
from binlake.errors import ConfigError
from binlake.pipeline import name_task
from binlake_airflow.telemetry import assets, notes
from binlake_airflow.telemetry.addresses import PAGES, read_base_url

Details = Mapping[str, Any]
_PLACES = {"landing": "the lake", "sql": "the target"}


def complete(details: Details) -> dict[str, Any]:
    """The details of a notification, with `text`, `todo` and `page`; a `text` that is there already stays.

    `page` is empty if `[api] base_url` is not set: then nobody knows Airflow's address.
    """
    page = build_page_url(str(details["replication"]))
    said, todo = _describe(details)
    text = str(details.get("text") or f"{details['replication']}: {said}.")
    lines = [text, *([f"What to do: {todo}"] if todo else []), *([page] if page else [])]
    return {**details, "page": page, "todo": todo, "text": "\n".join(lines)}


def build_page_url(replication: str) -> str:
    """The address of the replication's page; empty if Airflow's is not configured."""
    base = read_base_url()
    return f"{base}{PAGES}/dags/{quote(replication)}" if base else ""


def _describe(details: Details) -> tuple[str, str]:
    """What happened, and what to do."""
    describe = _DESCRIPTIONS.get(str(details["what"]))
    if describe is None and "lag_seconds" in details:
        describe = _describe_lag
    return ("", "") if describe is None else describe(details)


def _describe_lag(details: Details) -> tuple[str, str]:
    what = str(details["what"])
    place = _PLACES.get(what, f"the feed {what.removeprefix('feed-')}")
    said = f"{place} is {format_duration(details['lag_seconds'])} behind the source"
    return said, "the page says what holds it up; `binlake status` too"


def _describe_silence(details: Details) -> tuple[str, str]:
    since = tso.to_datetime(int(details["since"])).isoformat(timespec="seconds")
    silent = format_duration(details["silent_seconds"])
    said = f"no transaction for {silent} of commit time, since {since}, while windows land"
    return said, "check that the source is written to, and that its TiDB writes binlogs or its feeder reads"


def _describe_set_aside(details: Details) -> tuple[str, str]:
    said = f"set aside, because the target refuses them: {', '.join(details['tables'])}"
    return said, "mend the table, then bring it back on the page"


def _describe_different(details: Details) -> tuple[str, str]:
    return f"different from the source after a DDL: {', '.join(details['tables'])}", "verify and repair on the page"


def _describe_validation(details: Details) -> tuple[str, str]:
    said = f"{details['errors']} rows of the target differ, in {', '.join(details['tables'])}"
    return said, "`binlake validation show` lists them; verify and repair on the page"


def _describe_waiting_ddl(details: Details) -> tuple[str, str]:
    said = f"the DDL at commit_ts {details['commit_ts']} waits for a person: {details['reason']}"
    return said, "replace it or leave it out, on the page or by `binlake ddl replace` and `skip`"


def _describe_failure(_: Details) -> tuple[str, str]:
    return "", "the page has the error and the command to run next"


_DESCRIPTIONS: Mapping[str, Callable[[Details], tuple[str, str]]] = {
    "silence": _describe_silence, "set-aside": _describe_set_aside, "different": _describe_different,
    "validation": _describe_validation, "ddl-waits": _describe_waiting_ddl, "failure": _describe_failure,
    "deadline": _describe_failure, "feed-failed": _describe_failure,
}  # fmt: skip


_ENDED = ("success", "failed")


class OnFailure:
    """The failure callback of the DAGs of `replication_file`; Airflow calls it in the DAG processor."""

    def __init__(self, replication_file: str) -> None:
        self.replication_file = replication_file

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Notify as `airflow.on-failure` says."""
        notify_failure(self.replication_file, context)


def notify_failure(replication_file: str, context: Mapping[str, Any]) -> None:
    """Notify by `airflow.on-failure`, if it is set; also the callback of a missed deadline.

    The context gets `binlake`: `what` (failure, deadline), `run_id`, `errors` (stage, sink, kind, error, text, hint),
    and `text` for people. The deadline of a run that has ended is skipped: its failure was notified when it happened.
    """
    settings = load_replication(replication_file, secrets=False)
    rule = settings.airflow.on_failure
    late = "deadline" in context
    if rule is None or (late and _read_run_field(context, "state") in _ENDED):
        return
    run_id = str(
        context.get("run_id") or _read_run_field(context, "run_id") or _read_run_field(context, "dag_run_id") or ""
    )
    errors = notes.read_failures_of_run(settings, run_id)
    lines = [_format_failure(error) for error in errors]
    first = f"run {run_id} has taken longer than {settings.airflow.deadline_s} s" if late else f"run {run_id} failed"
    details = {"replication": settings.name, "what": "deadline" if late else "failure", "run_id": run_id,
            "errors": errors, "text": "\n".join([f"{settings.name}: {first}", *lines])}  # fmt: skip
    notify(rule, {"exception": lines[-1] if lines else None, **context, "binlake": details})


def _format_failure(error: Mapping[str, str]) -> str:
    hint = f" Hint: {error['hint']}" if error["hint"] else ""
    return f"{name_task(error['stage'], error['sink'])} failed: {error['text']}{hint}"


def _read_run_field(context: Mapping[str, Any], name: str) -> Any:
    """A field of the context's run: Airflow's scheduler passes a mapping, its DAG processor an object."""
    run = context.get("dag_run")
    return run.get(name) if isinstance(run, Mapping) else getattr(run, name, None)


def notify_lag(rule: NotifyOnLag, replication: str, what: str, lag_s: float, context: Mapping[str, Any]) -> bool:
    """Notify that `what` (landing, sql, feed-NAME) lags by `lag_s`, at most once in `repeat-s`."""
    details = {"replication": replication, "what": what, "lag_seconds": lag_s}
    return lag_s >= rule.seconds and _notify_unless_recent(rule, f"lag-told-{what}", details, context)


def notify_silence(rule: NotifyOnSilence, replication: str, since: int, until: int, context: Mapping[str, Any]) -> bool:
    """Notify that there was no transaction between these two commit_ts, at most once in `repeat-s`."""
    silent_s = (tso.extract_physical(until) - tso.extract_physical(since)) / 1000
    details = {"replication": replication, "what": "silence", "since": str(since), "silent_seconds": silent_s}
    return silent_s >= rule.seconds and _notify_unless_recent(rule, "silence-told", details, context)


def _notify_unless_recent(rule: NotifyOnLag, key: str, details: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
    """Notify unless a notification was sent within `repeat-s`; returns whether it notified.

    The time of the last notification is stored in Airflow's state store of the replication's asset.
    """
    store = context["asset_state_store"][assets.build_replication_asset(details["replication"])]
    last = store.get(key)
    if last is not None and time.time() - float(str(last)) < rule.repeat_s:
        return False
    notify(rule, {**context, "binlake": details})
    store.set(key, str(time.time()))
    return True


def notify(rule: NotifySection, context: Mapping[str, Any]) -> None:
    """Call the notifier that `rule` names, with `context["binlake"]` completed for people.

    Raises ConfigError if it does not exist, and what the notifier raises.
    """
    context = {**context, "binlake": complete(context["binlake"])}
    named = _import_notifier(rule.notifier)
    kwargs = {name: _resolve_variables(value) for name, value in rule.kwargs.items()}
    if isinstance(named, type) and issubclass(named, BaseNotifier):
        named(**kwargs)(dict(context))
    else:
        named(context, **kwargs)


def _import_notifier(path: str) -> Any:
    try:
        return resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the notifier cannot be imported: {error}",
            where={"notifier": path},
            hint="install its package where Airflow's DAG processor and tasks run",
        ) from error


def _resolve_variables(value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("env:")):
        return value
    name = value[4:]
    if name not in os.environ:
        raise ConfigError(
            "a notifier's argument refers to an environment variable that is not set", where={"name": name}
        )
    return os.environ[name]
