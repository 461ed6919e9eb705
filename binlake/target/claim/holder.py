"""The holder of the lease of a replication on its target, read without a lock: for waiting, never to decide."""

from __future__ import annotations

from contextlib import closing

from binlake.config.model import Target
from binlake.errors import TargetRefused
from binlake.statements.literal import qualified
from binlake.target.claim.owner import Owner
from binlake.target.session.failures import MISSING, code_of
from binlake.target.session.session import Session


def who_applies(target: Target, task: str) -> str:
    """The live holder of the lease of `task` and until when; empty = none. Raises TargetUnavailable, TargetRefused.

    A holder that ran on this host and has ended holds nothing: a claim would take it over, too.
    """
    lease = qualified(target.checkpoint_schema, "binlake_lease")
    sql = f"SELECT owner, lease_until FROM {lease} WHERE task = %s AND lease_until > UTC_TIMESTAMP(6)"
    with closing(Session(target)) as session:
        try:
            found = session.rows(sql, (task,))
        except TargetRefused as error:
            if code_of(error) in MISSING:
                return ""
            raise
    for holder, until in found:
        owner = Owner.parse(holder)
        if holder and not (owner is not None and owner.is_dead()):
            return f"{holder} applies this replication until {until} UTC"
    return ""
