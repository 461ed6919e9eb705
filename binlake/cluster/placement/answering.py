"""Whether PD answers: it gives a timestamp, or it counts as unavailable (S3-10).

That it gives the cluster's id proves nothing: a member of a PD without a leader still does, and no window can be
planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from binlake.cluster.placement.opening import open_placement
from binlake.errors import SourceUnavailable

if TYPE_CHECKING:
    from binlake.config.model import Source

log = structlog.get_logger(__name__)


def pd_answers(source: Source) -> bool:
    """Whether PD of `source` gives a timestamp. Raises Permanent when it answers and refuses: another cluster."""
    try:
        with open_placement(source) as placement:
            placement.pd.tso()
    except SourceUnavailable as error:
        log.info("pd_unreachable", reason=str(error))
        return False
    return True
