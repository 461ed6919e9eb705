"""What a worker of a source works with: the log, the definitions, and loads of tables beside the log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from binlake.mysqlbinlog.definitions.writer import DefinitionChange
from binlake.mysqlbinlog.model import BinlogPosition, LoggedStatement, SourceTransaction, TableMap
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.rows.schema import TableDef


class ReadUpTo(Protocol):
    """How far a log has been read: up to the end of a transaction, and up to an event (`SourceLog`)."""

    @property
    def position(self) -> BinlogPosition:
        """The end of the last transaction that was read."""

    @property
    def received_position(self) -> tuple[str, int]:
        """File and offset up to which events have arrived."""


class Log(ReadUpTo, Protocol):
    """The log of a source (`SourceLog`)."""

    trouble: str
    heard: float
    server: tuple[str, int]
    connections: int
    logs_cascades: bool

    def read(self, max_transactions: int, max_bytes: int, wait_s: float) -> list[SourceTransaction]:
        """The next transactions; empty if none came in time or it was closed. Raises Permanent."""

    def close(self) -> None:
        """Stop reading; from any thread."""

    def end(self) -> None:
        """Close the connection; called by the reading thread."""


class SourceDefinitions(Protocol):
    """The catalog (`Catalog`)."""

    lock: threading.RLock

    @property
    def version(self) -> int:
        """The SchemaVersion after the last change."""

    def find_definition(self, source: str, event: TableMap) -> TableDef | None:
        """The definition with which rows are decoded; None if the table is excluded."""

    def build_cascade_guard(self, source: str) -> Guard | None:
        """The guard against rows that foreign keys change without logging."""

    def follow_all(self, source: str, statements: Iterable[LoggedStatement]) -> list[DefinitionChange]:
        """The changes that these statements make: all or none. Raises SourceUnavailable if the tracker is down."""


@dataclass
class Parts:
    """What the workers of a feeder share. `version`: the SchemaVersion of the last published DDL."""

    journal: FeederJournal
    publisher: SourcePublisher
    catalog: SourceDefinitions
    stopped: threading.Event
    version: int


class LoadsBesideLog(Protocol):
    """Loads of tables while the log is read (`TableRounds`); for the worker's thread."""

    trouble: str

    @property
    def is_active(self) -> bool:
        """Whether rows of the log must pass `encode`."""

    @property
    def is_open(self) -> bool:
        """Whether a round waits for the log to reach its snapshot."""

    def start(self) -> None:
        """Call before the first batch."""

    def compute_wait_s(self, most: float) -> float:
        """Seconds until `step` may have something to do, at most `most`."""

    def step(self) -> None:
        """Begin the next round, if there is anything to load."""

    def count_before_round(self, transactions: Sequence[SourceTransaction]) -> int:
        """How many of `transactions` come before the open round."""

    def finish(self) -> None:
        """Commit the open round."""

    def finish_if_reached(self, read: ReadUpTo) -> None:
        """Commit the open round, if the log is published up to it."""

    def encode(
        self, transactions: Sequence[SourceTransaction], guard: Guard | None, on_rows: Callable[[int], None]
    ) -> list[bytes]:
        """The PrewriteValue of each of `transactions`."""

    def follow_statements(self, statements: Iterable[LoggedStatement]) -> Mapping[str, str]:
        """Adapt to DDL that was followed; the facts that record it."""

    def end(self) -> None:
        """Give up an open round."""
