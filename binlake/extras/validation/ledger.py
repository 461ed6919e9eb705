"""The ledger of continuous validation in the lake's table `validation`: errors, and rows that wait for proof.

It is written completely, in one commit, and only if something changed. A run that dies leaves the previous ledger.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from binlake.common.lakecolumns import Validation
from binlake.errors import ConfigError
from binlake.extras.validation.proof import Proof
from binlake.lake.control import ControlTable
from binlake.lake.controltables import VALIDATION
from binlake.lake.paths import LakePaths

Status = Literal["pending", "new", "ignored", "resolved"]
Against = Literal["lake", "source"]
EntryKey = tuple[Against, str, str, str]
"""Identifies an entry: what the row was compared with, database, table and key."""
LOCK = "validation"


@dataclass(frozen=True)
class ValidationEntry:
    """A row of the table `validation`."""

    status: Status
    against: Against
    db: str
    table: str
    key: str
    kind: str
    differing: tuple[str, ...] = ()
    expected: str = ""
    found: str = ""
    window: str = ""
    since: int = 0
    number: int = 0
    times: int = 1
    first_ms: int = 0
    last_ms: int = 0
    proof: str = ""

    @property
    def entry_key(self) -> EntryKey:
        """Identifies the entry."""
        return self.against, self.db, self.table, self.key

    @property
    def known_proof(self) -> Proof | None:
        """The proof so far of a pending row."""
        return Proof.from_json(self.proof) if self.proof else None

    def to_row(self) -> dict[str, Any]:
        """The entry as a row of the table."""
        return {**vars(self), Validation.DIFFERING: list(self.differing)}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> ValidationEntry:
        """Parse what `to_row` wrote."""
        return cls(**{**row, Validation.DIFFERING: tuple(row[Validation.DIFFERING] or ())})


class ValidationLedger:
    """The entries of one lake. To save, hold the lake's lock `LOCK`."""

    def __init__(self, paths: LakePaths) -> None:
        self._table = ControlTable(paths.locate_table(VALIDATION.name), VALIDATION)
        self._saved = {entry.entry_key: entry for entry in map(ValidationEntry.from_row, self._table.read_rows())}
        self._entries = dict(self._saved)
        self._counts = Counter(entry.status for entry in self._entries.values())
        self._last_number = max((entry.number for entry in self._entries.values()), default=0)
        self._now_ms = time.time_ns() // 1_000_000

    def list_entries(self, statuses: Collection[Status] | None = None) -> list[ValidationEntry]:
        """Entries with one of `statuses` (None: all): errors by number, then pending rows."""
        entries = [entry for entry in self._entries.values() if statuses is None or entry.status in statuses]
        return sorted(entries, key=lambda entry: (not entry.number, entry.number, entry.entry_key))

    def list_new_errors(self) -> list[ValidationEntry]:
        """Errors that are neither ignored nor resolved, by number."""
        return [entry for entry in self.list_entries() if entry.status == "new"]

    def get(self, entry_key: EntryKey) -> ValidationEntry | None:
        """The entry with this key, if any."""
        return self._entries.get(entry_key)

    def count(self, status: Status) -> int:
        """The number of entries with this status."""
        return self._counts[status]

    def put(self, entry: ValidationEntry) -> ValidationEntry:
        """Add `entry`, or update the one with its key. An ignored error stays ignored; a resolved one is new again."""
        old = self._entries.get(entry.entry_key)
        status, number = entry.status, old.number if old is not None else 0
        if status == "new":
            status = "ignored" if old is not None and old.status == "ignored" else "new"
            number = number or self._last_number + 1
            self._last_number = max(self._last_number, number)
        first, times = (old.first_ms, old.times + 1) if old is not None else (self._now_ms, 1)
        return self._set(
            replace(entry, status=status, number=number, times=times, first_ms=first, last_ms=self._now_ms)
        )

    def settle(self, entry_key: EntryKey) -> bool:
        """Record that the row is right: an error becomes resolved, a pending row is removed. True for an open error.

        A pending row that was an error before becomes resolved again.
        """
        entry = self._entries.get(entry_key)
        if entry is None or entry.status == "resolved":
            return False
        if entry.status == "pending" and not entry.number:
            self._remove(entry)
            return False
        self._set(replace(entry, status="resolved", last_ms=self._now_ms))
        return entry.status == "new"

    def mark(self, numbers: Collection[int] | None, status: Status) -> list[ValidationEntry]:
        """Set the status of the errors with these numbers (None: all that are new). Raises ConfigError."""
        marked = []
        for entry in self._select(numbers):
            if numbers is None and entry.status != "new":
                continue
            marked.append(self._set(replace(entry, status=status)))
        return marked

    def clear(self, numbers: Collection[int] | None) -> list[ValidationEntry]:
        """Remove the errors with these numbers (None: all that are ignored or resolved). Raises ConfigError."""
        gone = [
            entry for entry in self._select(numbers) if numbers is not None or entry.status in ("ignored", "resolved")
        ]
        for entry in gone:
            self._remove(entry)
        return gone

    def save(self) -> None:
        """Write the ledger, if anything changed."""
        if self._entries != self._saved:
            self._table.replace([entry.to_row() for entry in self._entries.values()])
            self._saved = dict(self._entries)

    def _set(self, entry: ValidationEntry) -> ValidationEntry:
        old = self._entries.get(entry.entry_key)
        if old is not None:
            self._counts[old.status] -= 1
        self._counts[entry.status] += 1
        self._entries[entry.entry_key] = entry
        return entry

    def _remove(self, entry: ValidationEntry) -> None:
        self._counts[entry.status] -= 1
        del self._entries[entry.entry_key]

    def _select(self, numbers: Collection[int] | None) -> Iterable[ValidationEntry]:
        errors = {entry.number: entry for entry in self._entries.values() if entry.number}
        if numbers is None:
            return list(errors.values())
        return list(_select_numbers(errors, numbers))


def _select_numbers(errors: dict[int, ValidationEntry], numbers: Collection[int]) -> Iterator[ValidationEntry]:
    for number in sorted(set(numbers)):
        if number not in errors:
            raise ConfigError(
                f"there is no error {number} in the ledger", hint="`binlake validation show` lists the errors"
            )
        yield errors[number]
