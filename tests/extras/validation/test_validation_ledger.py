"""The ledger of validation: how each result about its row changes an entry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from binlake.errors import ConfigError
from binlake.extras.validation import ledger as ledger_module
from binlake.extras.validation.ledger import Status, ValidationEntry, ValidationLedger
from binlake.lake.paths import LakePaths

A = ValidationEntry("new", "lake", "d", "t", "a", "missing")
B = ValidationEntry("new", "lake", "d", "t", "b", "different", ("x",), "1", "2", "w", 5)
WAITS = ValidationEntry(
    "pending", "source", "d", "t", "a", "different", ("x",), proof='{"ts": 1, "digest": "x", "is_fresh": true}'
)


class MemoryTable:
    """A control table in memory; `test_entries_are_stored_and_read_back` uses a real one."""

    def __init__(self) -> None:
        self.stored: list[dict[str, Any]] = []
        self.written = 0

    def read_rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.stored]

    def replace(self, rows: list[dict[str, Any]]) -> None:
        self.stored, self.written = rows, self.written + 1


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> MemoryTable:
    made = MemoryTable()
    monkeypatch.setattr(ledger_module, "ControlTable", lambda *_: made)
    return made


@pytest.fixture
def paths(tmp_path: Path, table: MemoryTable) -> LakePaths:
    assert table.read_rows() == []
    return LakePaths(str(tmp_path / "lake"))


def list_entries(ledger: ValidationLedger) -> list[tuple[str, str, str, int, int]]:
    return [(entry.status, entry.against, entry.key, entry.number, entry.times) for entry in ledger.list_entries()]


def count_by_status(ledger: ValidationLedger) -> list[int]:
    statuses: list[Status] = ["pending", "new", "ignored", "resolved"]
    assert [len(ledger.list_entries((status,))) for status in statuses] == [ledger.count(status) for status in statuses]
    return [ledger.count(status) for status in statuses]


def test_ids_of_listed_errors_are_not_reused(paths: LakePaths) -> None:
    ledger = ValidationLedger(paths)
    for entry in (WAITS, A, B, A):
        ledger.put(entry)
    assert list_entries(ledger) == [
        ("new", "lake", "a", 1, 2),
        ("new", "lake", "b", 2, 1),
        ("pending", "source", "a", 0, 1),
    ]
    assert [entry.key for entry in ledger.list_new_errors()] == ["a", "b"]
    ledger.save()
    again = ValidationLedger(paths)
    again.put(replace(A, key="c"))
    assert [entry.number for entry in again.list_new_errors()] == [1, 2, 3]
    found = again.get(WAITS.entry_key)
    assert found is not None
    assert found.known_proof is not None
    assert (found.known_proof.digest, again.get(A.entry_key) is None) == ("x", False)
    assert A.known_proof is None


def test_first_and_last_detection_are_recorded(paths: LakePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (5, 9):
        monkeypatch.setattr(ledger_module.time, "time_ns", lambda: now * 1_000_000)  # noqa: B023
        ledger = ValidationLedger(paths)
        ledger.put(A)
        ledger.save()
    (entry,) = ValidationLedger(paths).list_entries()
    assert (entry.first_ms, entry.last_ms, entry.times) == (5, 9, 2)
    monkeypatch.setattr(ledger_module.time, "time_ns", lambda: 12_000_000)
    ledger = ValidationLedger(paths)
    assert ledger.settle(A.entry_key)
    assert (ledger.list_entries()[0].first_ms, ledger.list_entries()[0].last_ms) == (5, 12)


def test_ignored_error_stays_ignored_until_its_row_is_right(paths: LakePaths) -> None:
    ledger = ValidationLedger(paths)
    ledger.put(A)
    ledger.put(B)
    assert [entry.key for entry in ledger.mark([1], "ignored")] == ["a"]
    ledger.put(A)
    assert count_by_status(ledger) == [0, 1, 1, 0]
    # Without ids: only new errors.
    assert [entry.key for entry in ledger.mark(None, "resolved")] == ["b"]
    assert count_by_status(ledger) == [0, 0, 1, 1]
    assert ledger.settle(A.entry_key) is False
    assert ledger.settle(A.entry_key) is False
    assert count_by_status(ledger) == [0, 0, 0, 2]
    assert ledger.put(B).status == "new"
    assert count_by_status(ledger) == [0, 1, 0, 1]
    # Without ids: all that are not new; with ids: any.
    assert [entry.key for entry in ledger.clear(None)] == ["a"]
    assert [entry.key for entry in ledger.clear([2])] == ["b"]
    assert count_by_status(ledger) == [0, 0, 0, 0]
    with pytest.raises(ConfigError, match="no error 2 in the ledger"):
        ledger.clear([2])


def test_waiting_row_is_resolved_once_it_is_right(paths: LakePaths) -> None:
    ledger = ValidationLedger(paths)
    ledger.put(WAITS)
    assert ledger.clear(None) == []
    assert count_by_status(ledger) == [1, 0, 0, 0]
    assert ledger.settle(WAITS.entry_key) is False
    assert ledger.settle(WAITS.entry_key) is False
    assert count_by_status(ledger) == [0, 0, 0, 0]


def test_only_changed_entries_are_written(paths: LakePaths, table: MemoryTable) -> None:
    ledger = ValidationLedger(paths)
    ledger.save()
    ledger.put(A)
    ledger.save()
    ledger.save()
    assert (table.written, len(table.stored)) == (1, 1)
    # A null in the table means that the row has no such column.
    assert ValidationEntry.from_row({**table.stored[0], "differing": None}).differing == ()
    assert ValidationEntry.from_row(B.to_row()) == B


def test_resolved_error_stays_listed_whatever_later_comparisons_find(paths: LakePaths) -> None:
    ledger = ValidationLedger(paths)
    error = ValidationEntry("new", "source", "d", "t", "a", "different", ("x",))
    ledger.put(error)
    assert ledger.settle(error.entry_key) is True
    # A change of the row is on its way, and arrives.
    ledger.put(ValidationEntry("pending", "source", "d", "t", "a", "different", ("x",), proof='{"ts": 1}'))
    assert ledger.settle(error.entry_key) is False
    assert [(entry.status, entry.number) for entry in ledger.list_entries()] == [("resolved", 1)]
    assert ledger.clear(None)
    assert ledger.list_entries() == []
