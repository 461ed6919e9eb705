"""Assets that show a replication's progress; other DAGs can be scheduled on them.

`binlake://<replication>` gets an event for every window, `binlake://<replication>/<db>/<table>` for windows that change
the table (names of the target), `binlake://<replication>/<feed>` for what the feed publishes. Events carry commit_ts as
a decimal string (hazards R-46). Which assets get events is known only after a window, so tasks declare an alias and add
events of concrete assets under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

from binlake import tso

SCHEME = "binlake"


def build_replication_asset(replication: str) -> Asset:
    """The asset of the whole replication."""
    uri = f"{SCHEME}://{replication}"
    return Asset(name=uri, uri=uri)


def build_table_asset(replication: str, db: str, table: str) -> Asset:
    """The asset of one table, with its name at the target."""
    uri = f"{SCHEME}://{replication}/{quote(db, safe='')}/{quote(table, safe='')}"
    return Asset(name=uri, uri=uri)


def build_feed_asset(replication: str, feed: str) -> Asset:
    """The asset of a feed's published messages."""
    uri = f"{SCHEME}://{replication}/{feed}"
    return Asset(name=uri, uri=uri)


def build_feed_alias(replication: str, feed: str) -> AssetAlias:
    """The outlet of the task that publishes a feed; the name is unique because a replication's name has no dot."""
    return AssetAlias(name=f"{SCHEME}-{replication}.{feed}")


def build_replication_alias(replication: str) -> AssetAlias:
    """The outlet of the task that emits the replication's events."""
    return AssetAlias(name=f"{SCHEME}-{replication}")


def emit_events(
    replication: str, result: Mapping[str, Any], tables: Iterable[Sequence[str]], context: Mapping[str, Any]
) -> None:
    """Emit that `result` brought the replication to its hi; `tables` (db, table) are those it changed."""
    extra = _build_extra(result, context)
    events = context["outlet_events"][build_replication_alias(replication)]
    events.add(build_replication_asset(replication), extra={**extra, "rows": result["rows"]})
    for db, table in tables:
        events.add(build_table_asset(replication, db, table), extra=extra)


def emit_feed_event(replication: str, result: Mapping[str, Any], context: Mapping[str, Any]) -> None:
    """Emit that a feed has published up to the hi of `result`."""
    feed = result["detail"]["feed"]
    extra = {
        **_build_extra(result, context),
        "rows": result["rows"],
        "topics": list(result["detail"].get("topics", ())),
    }
    context["outlet_events"][build_feed_alias(replication, feed)].add(build_feed_asset(replication, feed), extra=extra)


def _build_extra(result: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "commit_ts": result["hi"],
        "time": tso.to_datetime(int(result["hi"])).isoformat(timespec="milliseconds"),
        "window": f"{result['lo']}-{result['hi']}",
        "run_id": context["run_id"],
    }
