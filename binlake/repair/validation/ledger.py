"""The ledger of continuous validation: errors, and rows that wait for proof, in the lake's table `validation`.

It is written whole, in one commit, and only where something changed: a run that dies leaves what was there before it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from binlake.base.lakecolumns import Validation
from binlake.errors import ConfigError
from binlake.lake.control import ControlTable
from binlake.lake.paths import LakePaths
from binlake.lake.tables import VALIDATION
from binlake.repair.validation.proof import Proof

Status = Literal["pending", "new", "ignored", "resolved"]
Against = Literal["lake", "source"]
Place = tuple[Against, str, str, str]
"""What it was compared with, database, table and key: one entry each."""
LOCK = "validation"


@dataclass(frozen=True)
class Entry:
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
    def place(self) -> Place:
        """What it is about."""
        return self.against, self.db, self.table, self.key

    @property
    def known_proof(self) -> Proof | None:
        """Of a pending row."""
        return Proof.from_json(self.proof) if self.proof else None

    def to_row(self) -> dict[str, Any]:
        """For the table."""
        return {**vars(self), Validation.DIFFERING: list(self.differing)}

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Entry:
        """The value of `to_row`."""
        return cls(**{**row, Validation.DIFFERING: tuple(row[Validation.DIFFERING] or ())})


class Ledger:
    """The entries of one lake. Whoever saves holds the lake's lock `LOCK`."""

    def __init__(self, paths: LakePaths) -> None:
        self._table = ControlTable(paths.table(VALIDATION.name), VALIDATION)
        self._saved = {entry.place: entry for entry in map(Entry.of_row, self._table.rows())}
        self._entries = dict(self._saved)
        self._counts = Counter(entry.status for entry in self._entries.values())
        self._last_number = max((entry.number for entry in self._entries.values()), default=0)
        self._now_ms = time.time_ns() // 1_000_000

    def entries(self, statuses: Collection[Status] | None = None) -> list[Entry]:
        """Those of `statuses` (None: of any), errors by number, then what is pending."""
        entries = [entry for entry in self._entries.values() if statuses is None or entry.status in statuses]
        return sorted(entries, key=lambda entry: (not entry.number, entry.number, entry.place))

    def new_errors(self) -> list[Entry]:
        """Those that nobody has ignored or resolved, by number."""
        return [entry for entry in self.entries() if entry.status == "new"]

    def get(self, place: Place) -> Entry | None:
        """The entry of `place`."""
        return self._entries.get(place)

    def count(self, status: Status) -> int:
        """How many entries have this status."""
        return self._counts[status]

    def put(self, entry: Entry) -> Entry:
        """Add `entry`, or renew the one of its place: an error stays ignored, one that was resolved is new again."""
        old = self._entries.get(entry.place)
        status, number = entry.status, old.number if old is not None else 0
        if status == "new":
            status = "ignored" if old is not None and old.status == "ignored" else "new"
            number = number or self._last_number + 1
            self._last_number = max(self._last_number, number)
        first, times = (old.first_ms, old.times + 1) if old is not None else (self._now_ms, 1)
        return self._set(
            replace(entry, status=status, number=number, times=times, first_ms=first, last_ms=self._now_ms)
        )

    def settle(self, place: Place) -> bool:
        """The row is as it must be: an error is resolved by that, what was pending is over. True for an open error.

        What was an error before it was pending is on the list again.
        """
        entry = self._entries.get(place)
        if entry is None or entry.status == "resolved":
            return False
        if entry.status == "pending" and not entry.number:
            self._remove(entry)
            return False
        self._set(replace(entry, status="resolved", last_ms=self._now_ms))
        return entry.status == "new"

    def mark(self, numbers: Collection[int] | None, status: Status) -> list[Entry]:
        """Give the errors with these numbers (None: all that are new) another status. Raises ConfigError."""
        marked = []
        for entry in self._chosen(numbers):
            if numbers is None and entry.status != "new":
                continue
            marked.append(self._set(replace(entry, status=status)))
        return marked

    def clear(self, numbers: Collection[int] | None) -> list[Entry]:
        """Remove the errors with these numbers (None: all that are ignored or resolved). Raises ConfigError."""
        gone = [
            entry for entry in self._chosen(numbers) if numbers is not None or entry.status in ("ignored", "resolved")
        ]
        for entry in gone:
            self._remove(entry)
        return gone

    def save(self) -> None:
        """Make it durable, if anything changed."""
        if self._entries != self._saved:
            self._table.replace([entry.to_row() for entry in self._entries.values()])
            self._saved = dict(self._entries)

    def _set(self, entry: Entry) -> Entry:
        old = self._entries.get(entry.place)
        if old is not None:
            self._counts[old.status] -= 1
        self._counts[entry.status] += 1
        self._entries[entry.place] = entry
        return entry

    def _remove(self, entry: Entry) -> None:
        self._counts[entry.status] -= 1
        del self._entries[entry.place]

    def _chosen(self, numbers: Collection[int] | None) -> Iterable[Entry]:
        errors = {entry.number: entry for entry in self._entries.values() if entry.number}
        if numbers is None:
            return list(errors.values())
        return list(_of_numbers(errors, numbers))


def _of_numbers(errors: dict[int, Entry], numbers: Collection[int]) -> Iterator[Entry]:
    for number in sorted(set(numbers)):
        if number not in errors:
            raise ConfigError(
                f"there is no error {number} in the ledger", hint="`binlake validation show` lists the errors"
            )
        yield errors[number]
