"""Decides whether and how to finish the target's open window when the source is lost (S3-09 to S3-12)."""

from binlake.target.recover.relayed import finish_from_relay
from binlake.target.recover.trigger import (
    RecoverVerdict,
    describe_exceptions,
    is_consistent,
    judge_recovery,
    require_consistent,
)

__all__ = [
    "RecoverVerdict",
    "describe_exceptions",
    "finish_from_relay",
    "is_consistent",
    "judge_recovery",
    "require_consistent",
]
