"""Opens the placement driver of a configured source: its clock and its registry, closed together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from binlake.cluster.placement.etcd import EtcdClient
from binlake.cluster.placement.pd import PdClient
from binlake.cluster.placement.registry import NodeRegistry
from binlake.errors import SourceUnavailable
from binlake.rpc import Tls

if TYPE_CHECKING:
    from binlake.config.servers import SourceSection


@dataclass(frozen=True)
class Placement:
    """PD's own API, the registry in its etcd, and `tls`, which also applies to pumps."""

    pd: PdClient
    registry: NodeRegistry
    tls: Tls | None


@contextmanager
def open_placement(source: SourceSection) -> Iterator[Placement]:
    """PD of `source`; any cluster other than `source.cluster-id` is refused. Each part connects at its first call."""
    expected = source.expected_cluster or None
    tls = Tls.of(*source.security.list_files())
    with (
        closing(PdClient(source.pd_urls, source.timeout_s, expected, tls=tls)) as pd,
        closing(EtcdClient(source.pd_urls, source.timeout_s, tls=tls)) as etcd,
    ):
        yield Placement(pd, NodeRegistry(etcd), tls)


log = structlog.get_logger(__name__)


def is_pd_reachable(source: SourceSection) -> bool:
    """Whether PD of `source` gives a timestamp (S3-10). Raises Permanent if it belongs to another cluster.

    Giving the cluster's id is not enough: a member of a PD without a leader still does, but no window can be planned.
    """
    try:
        with open_placement(source) as placement:
            placement.pd.fetch_ts()
    except SourceUnavailable as error:
        log.info("pd_unreachable", reason=str(error))
        return False
    return True
