"""Whether PD answers, as all code that depends on it sees it: it gives a timestamp, or it is away (S3-10).

The id of the cluster is not a sign: a member of a PD that has lost its leader still gives it, and no window can be
planned.
"""

from __future__ import annotations

import structlog

from binlake.cluster.placement.opening import open_placement
from binlake.config.model import Source
from binlake.errors import SourceUnavailable

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
