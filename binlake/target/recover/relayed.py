"""Finishes the open window with only the target and the relay files: no lake, no Spark, no source (S3-09)."""

from __future__ import annotations

from binlake.config.model import Replication
from binlake.errors import CheckpointConflict, ConfigError
from binlake.target import ApplyResult, apply_window
from binlake.target.claim.loopback import LoopbackMarks
from binlake.target.recover.trigger import RecoverVerdict
from binlake.target.relay import RelayLog


def finish_from_relay(replication: Replication, verdict: RecoverVerdict, log_dir: str = "") -> ApplyResult:
    """Apply the rest of the open window of `verdict`; `log_dir` overrides `relay.log-dir`.

    Raises LostRange before the first write if the files are incomplete, and what `apply_window` raises.
    """
    relay, target = RelayLog.of(replication, log_dir), replication.target
    if relay is None or target is None:
        raise ConfigError("this replication writes no relay files", hint="give --log-dir, or set `relay.log-dir`")
    opened = verdict.opened
    if opened is None or opened.window is None or opened.manifest is None:
        raise CheckpointConflict("no window is open", where={"task": replication.name})
    window = relay.find_window(opened.window, opened.manifest)
    marks = LoopbackMarks.of(replication.loopback, replication.name)
    result = apply_window(target, window.manifest, window, marks=marks)
    relay.delete_applied(result.hi)
    return result
