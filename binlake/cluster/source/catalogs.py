"""Refuses status ports of several feeders: each feeder numbers its tables itself, so rows of one would be read as rows
of another's table."""

from __future__ import annotations

import json

from binlake.cluster.placement import Registry
from binlake.cluster.source.hearing import FEEDER_PATH
from binlake.cluster.source.tidb import StatusPort
from binlake.errors import Permanent

_HINT = (
    "name the status port of the one feeder of this PD (`status-addr` in feeder.toml): one feeder reads several"
    " servers, or each has a PD, pumps and a replication of its own (docs/operate/feeder.md)"
)


def check_catalogs(port: StatusPort, registry: Registry, cluster_id: int) -> None:
    """Raises Permanent if a status port that answers is not that of the PD's one feeder.

    Ports of TiDB servers are not judged. If none answers, whatever needs an answer says so.
    """
    owner = ""
    for url, body in port.find_each(FEEDER_PATH):
        name, its_cluster = _read_feeder(body)
        if not name and not owner:
            return
        owner = owner or registry.find_feeder() or name
        where = {"status-url": url, "feeder": name or "none", "cluster": str(cluster_id)}
        if name != owner:
            raise Permanent(f"source.status-url names more than the feeder {owner}", where=where, hint=_HINT)
        if its_cluster != str(cluster_id):
            where["its_cluster"] = its_cluster
            raise Permanent("source.status-url is that of another PD's feeder", where=where, hint=_HINT)


def _read_feeder(body: str | None) -> tuple[str, str]:
    """Name and PD of the feeder whose page `body` is; "" for any other page, as of a TiDB."""
    try:
        page = json.loads(body or "")
        return str(page["name"]), str(page["cluster_id"])
    except (ValueError, KeyError, TypeError):
        return "", ""
