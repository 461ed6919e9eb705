"""The source is gone and the target was left half-way: whether to finish its window, and from what (S3-09 to S3-12)."""

from binlake.target.recover.relayed import finish_from_relay
from binlake.target.recover.trigger import Verdict, but, is_consistent, judge, require_consistent

__all__ = ["Verdict", "but", "finish_from_relay", "is_consistent", "judge", "require_consistent"]
