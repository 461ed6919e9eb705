"""What each page shows, as plain values: one function a page, for HTML and JSON alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from binlake.config import Replication
from binlake_airflow.pages.request import Asked

View = Callable[[Replication, Asked], dict[str, Any]]
_LINES = 5
_NO_LAKE = "there is no lake at its path: nothing has landed yet, or the path is not mounted here"


class Forbidden(Exception):
    """The user may not see it."""


class Unknown(Exception):
    """What is asked for does not exist."""


def state(found: Replication) -> dict[str, Any]:
    """State of a replication, for the list of all."""
    lake = _lake(found)
    return {**_status(found, lake)[0], **({"problem": _NO_LAKE} if lake.missing else {})}


def replication(found: Replication, asked: Asked) -> dict[str, Any]:
    """Landed ts, lag, what blocks, nodes, a page of windows, the last DDL and checkpoints."""
    from binlake_airflow.pages.audits import ddls_view, in_part_view
    from binlake_airflow.pages.history import checkpoints_view, notices_view, windows_view

    lake, upto = _lake(found), asked.moment("upto")
    status, nodes = _status(found, lake)
    return {
        **status,
        **windows_view(found, lake.log, upto),
        "problem": _NO_LAKE if lake.missing else "",
        "upto": asked.text("upto"),
        "notices": notices_view(lake.log),
        "in_part": in_part_view(lake),
        "nodes": nodes,
        "ddl": ddls_view(lake, count=_LINES),
        "sql": found.target is not None,
        "checkpoint": checkpoints_view(lake.log, count=_LINES),
    }


def run(found: Replication, asked: Asked) -> dict[str, Any]:
    """Window, rows and seconds of each stage of one run."""
    from binlake_airflow.pages.history import run_view

    run_id = asked.path["run_id"]
    return run_view(_lake(found).log.events(run_id, limit=1000), run_id)


def ddls(found: Replication, asked: Asked) -> dict[str, Any]:
    """A page of the DDL timeline."""
    from binlake_airflow.pages.audits import ddls_view

    return ddls_view(_lake(found), asked.moment("upto"))


def checkpoints(found: Replication, asked: Asked) -> dict[str, Any]:
    """A page of the checkpoint's history."""
    from binlake_airflow.pages.history import checkpoints_view

    return checkpoints_view(_lake(found).log, asked.moment("upto"))


def row(found: Replication, asked: Asked) -> dict[str, Any]:
    """The versions of one row."""
    from binlake_airflow.pages.audits import row_view

    return row_view(_lake(found), asked)


def transaction(found: Replication, asked: Asked) -> dict[str, Any]:
    """All changes of one transaction."""
    from binlake_airflow.pages.audits import transaction_view

    return transaction_view(_lake(found), asked)


def table(found: Replication, asked: Asked) -> dict[str, Any]:
    """Some rows of a table at a moment."""
    from binlake_airflow.pages.audits import table_view

    return table_view(_lake(found), asked)


def _status(found: Replication, lake: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """How it stands, by the lake and by what is around it; and the registry's nodes."""
    from binlake_airflow.pages.health import Surroundings, health_view
    from binlake_airflow.pages.history import status_view
    from binlake_airflow.pages.nodes import nodes_view
    from binlake_airflow.pages.reachability import reach_view
    from binlake_airflow.pages.runs import facts_of

    now_ms = time.time_ns() // 1_000_000
    status = status_view(found, lake.log, now_ms)
    around = Surroundings(facts_of(found.name), reach_view(found), nodes_view(found))
    return {**status, **health_view(found, lake.log, status, around, now_ms)}, dict(around.nodes)


def _lake(found: Replication) -> Any:
    # At call time: the scheduler loads this plugin too, and forks tasks; delta-rs' threads must not be there then.
    from binlake_airflow.pages.audits import Lake

    return Lake(found)


PAGES: dict[str, tuple[str, View]] = {
    "/dags/{dag_id}": ("replication.html", replication),
    "/dags/{dag_id}/runs/{run_id:path}": ("run.html", run),
    "/dags/{dag_id}/ddl": ("ddl.html", ddls),
    "/dags/{dag_id}/checkpoints": ("checkpoints.html", checkpoints),
    "/dags/{dag_id}/row": ("row.html", row),
    "/dags/{dag_id}/transaction": ("transaction.html", transaction),
    "/dags/{dag_id}/table": ("table.html", table),
}
"""Template and view by path."""
