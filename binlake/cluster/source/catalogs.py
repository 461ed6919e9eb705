"""Refuses status ports of several feeders: each feeder numbers its tables itself, so rows of one would be read as rows
of another's table."""

from __future__ import annotations

import json

from binlake.cluster.placement import Registry
from binlake.cluster.source.hearing import FEEDER_PATH
from binlake.cluster.source.tidb import StatusPort
from binlake.errors import Permanent, WireError

_HINT = (
    "name the status port of the one feeder of this PD (`status-addr` in feeder.toml): one feeder reads several"
    " servers, or each has a PD, pumps and a replication of its own (docs/operate/feeder.md)"
)


def check_catalogs(port: StatusPort, registry: Registry, cluster_id: int) -> None:
    """Raises Permanent if a status port that answers is not that of the PD's one feeder, WireError.

    Ports of TiDB servers are not judged. If none answers, whatever needs an answer says so.
    """
    owner = ""
    for url, body in port.find_each(FEEDER_PATH):
        if body is None and not owner:
            return
        page = _parse(url, body)
        owner = owner or registry.find_feeder() or page["name"]
        where = {"status-url": url, "feeder": page["name"], "cluster": str(cluster_id)}
        if page["name"] != owner:
            raise Permanent(f"source.status-url names more than the feeder {owner}", where=where, hint=_HINT)
        if page["cluster_id"] != str(cluster_id):
            where["its_cluster"] = page["cluster_id"]
            raise Permanent("source.status-url is that of another PD's feeder", where=where, hint=_HINT)


def _parse(url: str, body: str | None) -> dict[str, str]:
    """Name and PD of the feeder whose page this is; a TiDB has neither."""
    try:
        page = json.loads(body) if body is not None else {"name": "", "cluster_id": ""}
        return {key: str(page[key]) for key in ("name", "cluster_id")}
    except (ValueError, KeyError, TypeError) as error:
        raise WireError(f"the feeder's page cannot be read: {error!r}", where={"url": url}) from error
