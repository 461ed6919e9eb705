"""The content of each page as plain values: one function for each page, used for both HTML and JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from binlake.config import Replication
from binlake.feed.state import read_state
from binlake.health.positions import ACTIONS, build_state_view
from binlake.lake.windowlog import WindowLog
from binlake_airflow.pages.request import NotAllowed, NotPossible, PageRequest


def act_on_feed(log: WindowLog, name: str, action: str, who: str) -> dict[str, Any]:
    """Pause or resume the feed `name` for the user `who`; returns its new state. Raises NotPossible, Permanent."""
    state = read_state(log, name)
    act = ACTIONS.get(state.state, {}).get(action)
    if act is None:
        raise NotPossible(f"{action[:20]!r} is not possible in state {state.state}: was it changed meanwhile?")
    return build_state_view(act(log, name, reason=f"{action} by {who[:80]}, on the page"))


__all__ = ["PAGES", "NotAllowed", "NotFound", "View"]

View = Callable[[Replication, PageRequest], dict[str, Any]]
_LINES = 5
_MARKS = 20
"""The newest DDL, which the charts mark."""
_NO_LAKE = "there is no lake at its path: nothing has landed yet, or the path is not mounted here"


class NotFound(Exception):
    """The requested object does not exist."""


def answer_of_one_moment(build: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `build` returns; it asks an object store only once for what is new in a table."""
    from binlake.lake.storetable import look_once

    with look_once():
        return build()


def read_replication_state(replication: Replication) -> dict[str, Any]:
    """State of a replication, for the list of all replications."""
    return answer_of_one_moment(lambda: _read_replication_state(replication))


def _read_replication_state(replication: Replication) -> dict[str, Any]:
    from binlake_airflow.pages.timeline import read_lags

    lake = _open_lake(replication)
    status = _read_status(replication, lake)[0]
    return {**status, "lags": read_lags(lake.log, status["skew_ms"]), **({"problem": _NO_LAKE} if lake.missing else {})}


def build_replication_page(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """Landed ts, lag, what blocks it, feeds, nodes, a page of windows, the last DDL and checkpoints."""
    from binlake_airflow.pages.audits import (
        build_ddls_view,
        build_incomplete_tables_view,
        hide_keys_of_validation,
    )
    from binlake_airflow.pages.history import build_checkpoints_view, build_notices_view, build_windows_view
    from binlake_airflow.pages.timeline import read_timeline

    lake, upto = _open_lake(replication, query), query.parse_moment("upto")
    status, nodes = _read_status(replication, lake)
    hide_keys_of_validation(lake, status.get("validated"))
    ddl = build_ddls_view(lake, count=_MARKS)
    return {
        **status,
        **build_windows_view(replication, lake.log, upto),
        "problem": _NO_LAKE if lake.missing else "",
        "upto": query.read_text("upto"),
        "notices": build_notices_view(lake.log),
        "in_part": build_incomplete_tables_view(lake),
        "nodes": nodes,
        "ddl": {**ddl, "ddls": ddl["ddls"][:_LINES]},
        "timeline": read_timeline(lake.log, time.time_ns() // 1_000_000, ddl["ddls"], status["skew_ms"]),
        "sql": replication.target is not None,
        "checkpoint": build_checkpoints_view(lake.log, count=_LINES),
    }


def change_feed(replication: Replication, name: str, action: str, who: str) -> dict[str, Any]:
    """Pause or resume a feed for the user `who`; returns its new state. Raises NotFound, NotPossible."""
    if name not in (feed.name for feed in replication.feed):
        raise NotFound("this replication has no such feed")
    return act_on_feed(_open_lake(replication).log, name, action, who)


def build_run_page(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """Window, rows and seconds of each stage of one run."""
    from binlake_airflow.pages.history import build_run_view

    run_id = query.path["run_id"]
    return build_run_view(_open_lake(replication).log.read_events(run_id, limit=1000), run_id)


def build_ddl_page(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """A page of the DDL timeline."""
    from binlake_airflow.pages.audits import build_ddls_view

    return build_ddls_view(_open_lake(replication), query.parse_moment("upto"))


def build_checkpoints_page(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """A page of the checkpoint's history."""
    from binlake_airflow.pages.history import build_checkpoints_view

    return build_checkpoints_view(_open_lake(replication).log, query.parse_moment("upto"))


def build_tables_page(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """The tables whose names contain a text."""
    from binlake_airflow.pages.audits import find_tables_view

    return {**find_tables_view(_open_lake(replication), query), "sql": replication.target is not None}


def build_row_page(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """The versions of one row."""
    from binlake_airflow.pages.audits import build_row_view

    return build_row_view(_open_lake(replication, query), query)


def build_transaction_page(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """All changes of one transaction."""
    from binlake_airflow.pages.audits import build_transaction_view

    return build_transaction_view(_open_lake(replication, query), query)


def build_table_page(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """Some rows of a table as of a commit_ts."""
    from binlake_airflow.pages.audits import build_table_view

    return build_table_view(_open_lake(replication, query), query)


def build_diff_page(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """The difference of a table between two moments."""
    from binlake_airflow.pages.diffs import build_diff_view

    return build_diff_view(_open_lake(replication, query), query)


def build_export_file(replication: Replication, query: PageRequest) -> dict[str, Any]:
    """A file with what a page shows, whole."""
    from binlake_airflow.pages.exports import build_export

    return build_export(_open_lake(replication, query), query)


def _read_status(replication: Replication, lake: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The replication's status, from the lake, its surroundings and Airflow, and the registry's nodes."""
    from binlake.health.survey import read_health
    from binlake_airflow.pages.orchestration import read_orchestration

    return read_health(replication, lake.log, read_orchestration(replication))


def _open_lake(replication: Replication, query: PageRequest | None = None) -> Any:
    """The lake; without the request of somebody who may see them, values of masked columns are hidden."""
    # Imported at call time: the scheduler loads this plugin too and forks tasks, so delta-rs' threads must not run
    # there.
    from binlake_airflow.pages.audits import PageLake

    return PageLake(replication, sees_masked=query is not None and query.sees_masked)


PAGES: dict[str, tuple[str, View]] = {
    "/dags/{dag_id}": ("replication.html", build_replication_page),
    "/dags/{dag_id}/runs/{run_id:path}": ("run.html", build_run_page),
    "/dags/{dag_id}/ddl": ("ddl.html", build_ddl_page),
    "/dags/{dag_id}/checkpoints": ("checkpoints.html", build_checkpoints_page),
    "/dags/{dag_id}/tables": ("tables.html", build_tables_page),
    "/dags/{dag_id}/row": ("row.html", build_row_page),
    "/dags/{dag_id}/transaction": ("transaction.html", build_transaction_page),
    "/dags/{dag_id}/table": ("table.html", build_table_page),
    "/dags/{dag_id}/diff": ("diff.html", build_diff_page),
}
"""Template and view by path."""
