"""What a notification says to a person: what, since when, what to do, and the address of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from binlake import tso
from binlake.base.durations import format_duration
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
