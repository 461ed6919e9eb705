"""Every error Binlake raises: what happened, where, and what to do; its class decides whether a retry helps.

`Permanent`: the same call fails again until something is changed. `Transient`: waiting helps.
`UnknownOutcome`: the other side may or may not have done it; look before you repeat (hazards R-61).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class BinlakeError(Exception):
    """Base of all errors.

    `message` says what happened; `where` holds keys such as pump, table, commit_ts, window; `hint` says what to do.
    `str(error)` is one line, fit for a terminal and a task log. `tables`: (db, table) of the target's tables that
    alone are in the way, where that is known (not carried between processes).
    """

    kind: ClassVar[str] = "Transient"
    """Which of the three the error is; an error of none of them is worth another try."""

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
        # Spark and Airflow carry errors between processes; keyword-only arguments need help to be pickled.
        return (_rebuild, (type(self), self.message, self.hint, self.where))


def _rebuild(kind: type[BinlakeError], message: str, hint: str, where: dict[str, object]) -> BinlakeError:
    return kind(message, hint=hint, where=where)


class Permanent(BinlakeError):
    """Fails again until something is changed: never retried by an operator."""

    kind = "Permanent"


class Transient(BinlakeError):
    """A later try may succeed: retried by the operators."""


class UnknownOutcome(BinlakeError):
    """The outcome is not known: the caller must look (ledger, registry, definitions) before it tries again."""

    kind = "UnknownOutcome"


class ConfigError(Permanent):
    """A configuration value is missing, unknown or malformed."""


class WireError(Permanent):
    """Bytes that should be a binlog, a row or a job are not."""


class SchemaError(Permanent):
    """A table, column or DDL job is unknown or contradicts the schema history."""


class IncompleteWindow(Transient):
    """A window cannot be proved complete: a pump is missing, behind, or has collected the range."""


class LostRange(Permanent):
    """A range of commit_ts cannot be had any more (GC, wiped disk, forced offline)."""


class ImmutableWindow(Permanent):
    """A landed window would change: its digest differs from the sealed manifest."""


class DamagedManifest(Permanent):
    """What a stage sealed for the stages after it is missing, damaged, of another version or of another window."""


class ConflictingBinlogs(Permanent):
    """Two pumps hold different content for one commit_ts."""


class SourceUnavailable(Transient):
    """PD, a pump or the status port cannot be reached."""


class SourceRefused(Permanent):
    """A MySQL or MariaDB source, or what its log holds, cannot be followed as it is."""


class SharedFailure(Transient):
    """A step on what several share was broken off: each of them has to begin anew from what is durable."""


class OutOfTime(Transient):
    """A bounded search ended before it had an answer."""


class TargetUnavailable(Transient):
    """The target database cannot be reached, or the connection broke outside a commit."""


class TargetBusy(Transient):
    """The target rolled the transaction back for another one's sake: a deadlock or a lock wait that took too long."""


class TargetRefused(Permanent):
    """The target refuses: credentials, privileges, a statement it cannot run, data it does not take."""


class Fenced(Permanent):
    """Another process holds the fence: this one must not write."""


class LeaseHeld(Transient):
    """Another live process holds the lease; names it and says until when."""


class CheckpointConflict(Permanent):
    """The manifest does not start at the checkpoint, or an open window would be retried with other bounds."""


class Drift(Permanent):
    """The target's definitions are not those that the manifest expects."""
