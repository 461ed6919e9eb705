"""Every error Binlake raises: what happened, where, and what to do; its class says whether a retry helps.

`Permanent`: the same call fails again until something is changed. `Transient`: waiting helps.
`UnknownOutcome`: the other side may or may not have done it; check before you repeat (hazards R-61).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class BinlakeError(Exception):
    """Base of all errors.

    `message` says what happened; `where` holds keys such as pump, table, commit_ts, window; `hint` says what to do.
    `str(error)` is one line, fit for a terminal and a task log. `tables`: (db, table) of the only tables of the target
    that cause the error, if known (not carried between processes).
    """

    kind: ClassVar[str] = "Transient"
    """Permanent, Transient or UnknownOutcome; an error of none of these classes is retried."""

    def __init__(self, message: str, *, hint: str = "", where: Mapping[str, object] | None = None) -> None:
        self.message = message
        self.hint = hint
        self.tables: tuple[tuple[str, str], ...] = ()
        self.where = {key: str(value) for key, value in (where or {}).items()}
        super().__init__(str(self))

    def __str__(self) -> str:
        place = " ".join(f"{key}={value}" for key, value in self.where.items())
        parts = [self.message, f"[{place}]" if place else "", f"Hint: {self.hint}" if self.hint else ""]
        return " ".join(" ".join(part.split("\n")) for part in parts if part)

    def __reduce__(self) -> tuple[object, ...]:
        # Spark and Airflow pickle errors to pass them between processes; keyword-only arguments need this method.
        return (_rebuild, (type(self), self.message, self.hint, self.where))


def _rebuild(kind: type[BinlakeError], message: str, hint: str, where: dict[str, object]) -> BinlakeError:
    return kind(message, hint=hint, where=where)


class Permanent(BinlakeError):
    """The same call fails again until something is changed: Airflow's operators never retry it."""

    kind = "Permanent"


class Transient(BinlakeError):
    """A later try may succeed: Airflow's operators retry it."""


class UnknownOutcome(BinlakeError):
    """The outcome is unknown: the caller must check it (ledger, registry, definitions) before it tries again."""

    kind = "UnknownOutcome"


class ConfigError(Permanent):
    """A configuration value is missing, unknown or malformed."""


class WireError(Permanent):
    """Bytes are not the binlog, row or DDL job that they should be."""


class SchemaError(Permanent):
    """A table, column or DDL job is unknown or contradicts the schema history."""


class IncompleteWindow(Transient):
    """A window cannot be proved complete: a pump is missing or behind, or its GC has removed the range."""


class LostRange(Permanent):
    """A range of commit_ts is no longer available (GC, wiped disk, forced offline)."""


class ImmutableWindow(Permanent):
    """A landed window would change: its digest differs from the sealed manifest."""


class DamagedManifest(Permanent):
    """The manifest that a stage sealed for later stages is missing, damaged, or of another version or window."""


class ConflictingBinlogs(Permanent):
    """Two pumps hold different content for one commit_ts."""


class SourceUnavailable(Transient):
    """PD, a pump or the status port cannot be reached."""


class SourceRefused(Permanent):
    """A MySQL or MariaDB source, or the content of its log, cannot be followed as it is."""


class SharedFailure(Transient):
    """A step on shared state was aborted: each of its users must start again from the durable state."""


class OutOfTime(Transient):
    """A search with a time limit ended without an answer."""


class TargetUnavailable(Transient):
    """The target database cannot be reached, or the connection broke outside a commit."""


class TargetBusy(Transient):
    """The target rolled the transaction back in favour of another one: a deadlock, or a lock wait that timed out."""


class TargetRefused(Permanent):
    """The target refuses: credentials, privileges, a statement it cannot run, data it does not accept."""


class Fenced(Permanent):
    """Another process holds the fence: this process must not write."""


class LeaseHeld(Transient):
    """Another live process holds the lease; the error names it and says until when."""


class CheckpointConflict(Permanent):
    """The manifest does not start at the checkpoint, or an open window would be retried with other bounds."""


class CheckpointMoved(CheckpointConflict):
    """A position that Binlake recorded was changed by another hand: it is not believed until an operator says so."""


class PositionMoved(Permanent):
    """A feed's sink reports a position that publish has not left there: it is not used until an operator says so."""


class Drift(Permanent):
    """The target's definitions are not those that the manifest expects."""
