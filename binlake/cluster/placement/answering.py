"""Checks whether PD is available, which means that it gives a timestamp (S3-10).

Giving the cluster's id is not enough: a member of a PD without a leader still does, but no window can be planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from binlake.cluster.placement.opening import open_placement
from binlake.errors import SourceUnavailable

if TYPE_CHECKING:
    from binlake.config.source import SourceSection

log = structlog.get_logger(__name__)


def is_pd_reachable(source: SourceSection) -> bool:
    """Whether PD of `source` gives a timestamp. Raises Permanent if it belongs to another cluster."""
    try:
        with open_placement(source) as placement:
            placement.pd.fetch_ts()
    except SourceUnavailable as error:
        log.info("pd_unreachable", reason=str(error))
        return False
    return True
