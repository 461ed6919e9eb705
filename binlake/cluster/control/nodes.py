"""Nodes as an operator sees them: which entries are stale, what a forced offline loses, what a node answers.

A node answers over HTTP with the envelope `{message, code, data}`, code 200 = done (2.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from binlake import tso
from binlake.cluster.placement import NodeStatus
from binlake.errors import Permanent, SourceUnavailable, UnknownOutcome
from binlake.rpc import Tls

MISSED_BEATS = 3
_BEATING = frozenset({"online", "pausing", "closing"})
_TIMEOUT_S = 10.0
_DONE = 200


def is_stale(node: NodeStatus, now_ts: int, heartbeat_s: float) -> bool:
    """Whether a node that should write its entry has missed MISSED_BEATS heartbeats (S0-34)."""
    age_ms = tso.extract_physical(now_ts) - tso.extract_physical(node.update_ts)
    return node.state in _BEATING and age_ms > MISSED_BEATS * heartbeat_s * 1000


def is_ahead(node: NodeStatus, now_ts: int) -> bool:
    """Whether a node reports a commit_ts that PD has not issued yet, that is, has a binlog from the future."""
    return node.max_commit_ts > now_ts + tso.FUTURE_SLACK


def describe_node(node: NodeStatus, now_ts: int, *, stale: bool) -> dict[str, Any]:
    """One node as JSON of Binlake: the registry's names, timestamps as decimal strings."""
    return {
        "nodeId": node.node_id,
        "host": node.host,
        "state": node.state,
        "score": node.score,
        "label": dict(node.label) if node.label else None,
        "maxCommitTS": str(node.max_commit_ts),
        "updateTS": str(node.update_ts),
        "updateTime": format_time(node.update_ts),
        "stale": stale,
        "ahead": is_ahead(node, now_ts),
    }


def format_time(ts: int) -> str:
    """UTC time of `ts` to the second; empty if `ts` is 0."""
    return tso.to_datetime(ts).strftime("%Y-%m-%d %H:%M:%S") if ts else ""


def format_unread_range(pump: NodeStatus, drainers: Sequence[NodeStatus]) -> str:
    """The commit_ts range that consumers have not read from `pump`, as text; empty if they have read all."""
    positions = [drainer.max_commit_ts for drainer in drainers if drainer.state != "offline"]
    if not positions:
        return f"everything it holds, up to {pump.max_commit_ts}: no consumer is registered"
    if min(positions) >= pump.max_commit_ts:
        return ""
    return f"({min(positions)}, {pump.max_commit_ts}]"


def format_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns, which are never cropped."""
    widths = [max(len(row[at]) for row in [titles, *rows]) for at in range(len(titles))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [titles, *rows]]
    return "\n".join(line.rstrip() for line in lines)


def ask_node(method: str, host: str, path: str, tls: Tls | None = None, *, token: str = "") -> dict[str, Any]:
    """Call the node at `host` (HOST:PORT), by HTTPS with `tls`; `token` is sent if not empty. Returns the envelope.

    Raises Permanent if the node refuses, SourceUnavailable if it cannot be reached, UnknownOutcome if it got the
    request and did not answer.
    """
    context = True if tls is None else tls.build_http_context()
    url = f"{'http' if tls is None else 'https'}://{host}{path}"
    try:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = httpx.request(method, url, timeout=_TIMEOUT_S, verify=context, headers=headers)
        envelope = answer.json()
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise SourceUnavailable(
            f"the node cannot be reached: {error}",
            where={"url": url},
            hint="its process has ended, or its address is not reachable from here",
        ) from None
    except httpx.HTTPError as error:
        raise UnknownOutcome(
            f"the node did not answer: {error or type(error).__name__}",
            where={"url": url},
            hint="check its state with `binlake pumps` before you retry",
        ) from None
    except ValueError:
        raise Permanent(
            f"the answer is not in the expected format (HTTP {answer.status_code})",
            where={"url": url},
            hint="is this a pump?",
        ) from None
    if not isinstance(envelope, dict) or envelope.get("code") != _DONE:
        message = envelope.get("message") if isinstance(envelope, dict) else envelope
        raise Permanent(f"the node refused: {message}", where={"url": url})
    return envelope
