"""Refuses status ports that do not belong together: of several feeders, or of several TiDB clusters.

Each feeder and each cluster numbers its tables itself, so rows of one would be read as rows of another's table.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from binlake.cluster.placement import NodeRegistry
from binlake.cluster.source.hearing import FEEDER_PATH
from binlake.cluster.source.tidb import StatusPort
from binlake.errors import Permanent

_SERVERS_PATH = "/info/all"
"""Every TiDB server answers with the ids of all servers of its cluster, from the cluster's PD."""
_HINT = (
    "name the status port of the one feeder of this PD (`status-addr` in feeder.toml): one feeder reads several"
    " servers, or each has a PD, pumps and a replication of its own (docs/operate/feeder.md)"
)
_TIDB_HINT = (
    "`source.status-url` (`status-urls` of a pump) names status ports of one TiDB cluster, that of the PD: another"
    " cluster has a replication of its own"
)


def check_catalogs(port: StatusPort, registry: NodeRegistry, cluster_id: int) -> None:
    """Raises Permanent if a status port that answers is not that of the PD's one feeder, or of the PD's TiDB cluster.

    If none answers, whatever needs an answer says so.
    """
    found = [(url, *_read_feeder(body)) for url, body in port.find_each(FEEDER_PATH)]
    names = [name for _, name, _ in found if name]
    if not names:
        check_servers(port, registry)
        return
    owner = registry.find_feeder() or names[0]
    for url, name, its_cluster in found:
        where = {"status-url": url, "feeder": name or "none", "cluster": str(cluster_id)}
        if name != owner:
            raise Permanent(f"source.status-url names more than the feeder {owner}", where=where, hint=_HINT)
        if its_cluster != str(cluster_id):
            where["its_cluster"] = its_cluster
            raise Permanent("source.status-url is that of another PD's feeder", where=where, hint=_HINT)


def check_servers(port: StatusPort, registry: NodeRegistry) -> None:
    """Raises Permanent if TiDB servers that answer are not of one cluster, that of the PD."""
    # A server that starts again has another id, and may do so between two questions.
    if _find_stranger(port, registry) is not None and (error := _find_stranger(port, registry)) is not None:
        raise error


def _find_stranger(port: StatusPort, registry: NodeRegistry) -> Permanent | None:
    answers = [(url, _read_servers(body)) for url, body in port.find_each(_SERVERS_PATH)]
    known = [(url, servers) for url, servers in answers if servers]
    if not known:
        return None
    of_pd = registry.list_tidb_servers()
    for url, servers in known:
        where = {"status-url": url, "servers": _format(servers)}
        if of_pd and servers.isdisjoint(of_pd):
            where |= {"pd_servers": _format(of_pd)}
            return Permanent("a status port does not belong to the PD's TiDB cluster", where=where, hint=_TIDB_HINT)
        first, its_servers = known[0]
        if servers.isdisjoint(its_servers):
            where |= {"other": first, "its_servers": _format(its_servers)}
            return Permanent("the status ports belong to two TiDB clusters", where=where, hint=_TIDB_HINT)
    return None


def _read_servers(body: str | None) -> frozenset[str]:
    """The ids of the servers of a TiDB cluster; none for any other page."""
    try:
        return frozenset(map(str, dict(json.loads(body or "")["all_servers_info"])))
    except (ValueError, KeyError, TypeError):
        return frozenset()


def _format(servers: Collection[str]) -> str:
    return ", ".join(sorted(servers))


def _read_feeder(body: str | None) -> tuple[str, str]:
    """Name and PD of the feeder whose page `body` is; "" for any other page, as of a TiDB."""
    try:
        page = json.loads(body or "")
        return str(page["name"]), str(page["cluster_id"])
    except (ValueError, KeyError, TypeError):
        return "", ""
