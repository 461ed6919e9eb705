"""Reads one source and publishes it: rows in batches, each statement alone, all in the order of the source's commits.

One thread reads ahead in the log, another encodes and publishes. A large transaction passes through files. If a source
cannot be read any further, only that source stops, and the error names it. The worker waits for an unreachable source,
tracker, PD or pump.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import structlog

from binlake.common.spool import MessagePiece, SpoolFile
from binlake.errors import BinlakeError, SchemaError, SharedFailure, SourceUnavailable
from binlake.mysqlbinlog.definitions.writer import DefinitionChange
from binlake.mysqlbinlog.events.changes import SpooledChanges
from binlake.mysqlbinlog.model import BinlogPosition, LoggedStatement, SourceTransaction
from binlake.mysqlbinlog.rowimage import encode_in_pieces, encode_transactions
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.pump_service.feeder.journal import ReadPosition
from binlake.pump_service.feeder.parts import LoadsBesideLog, Log, Parts
from binlake.pump_service.feeder.publisher import Outgoing, PublishedDdl, Stopped
from binlake.pump_service.feeder.settings import SourceFile

log = structlog.get_logger()

_AHEAD = 2  # batches that are read ahead
_IDLE_S = 0.5
_RETRY_S = 0.5  # before the tracker is tried again


@dataclass(frozen=True)
class Counts:
    """What a worker has published since its start; `last_ms`: when the source committed the last of it."""

    transactions: int = 0
    rows: int = 0
    batches: int = 0
    ddls: int = 0
    left_out: int = 0
    log_bytes: int = 0
    last_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of the log, and how far: see `ReadUpTo`."""

    transactions: list[SourceTransaction]
    position: BinlogPosition
    received_position: tuple[str, int] = ("", 0)


class Worker:
    """One source. `begin`: returns the log at the source's position, after a first load if needed; `ended`: called
    once, from the worker's thread, with the reason it ended: None = it was asked to stop; `begin_trouble`: what `begin`
    waits for, "" = nothing; `loads`: None = no table is loaded beside the log."""

    def __init__(
        self,
        source: SourceFile,
        parts: Parts,
        begin: Callable[[], Log],
        ended: Callable[[BaseException | None], None],
        begin_trouble: Callable[[], str] = lambda: "",
        loads: LoadsBesideLog | None = None,
    ) -> None:
        self.source = source
        self._loads = loads
        self._parts = parts
        self._begin = begin
        self._ended = ended
        self._begin_trouble = begin_trouble
        self._log: Log | None = None
        self._ready: queue.Queue[_Read | BaseException] = queue.Queue(_AHEAD)
        self._is_over = threading.Event()
        self._oldest_ms = 0
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"feeder-{source.name}", daemon=True)
        self.counts = Counts()
        self.failure = ""
        self.state = "starting"
        self.tracker_trouble = ""

    def start(self) -> None:
        """Run in its own thread."""
        self._thread.start()

    def wake(self) -> None:
        """Interrupt its wait, so that it notices a stop."""
        if self._log is not None:
            self._log.close()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    @property
    def trouble(self) -> str:
        """Why this source makes no progress, for people; "" = no problem."""
        blocked = self._parts.publisher.blocked.get(self.source.name, "")
        own = self._begin_trouble() if self._log is None else self._log.trouble
        of_loads = self._loads.trouble if self._loads is not None else ""
        return self.failure or blocked or self.tracker_trouble or own or of_loads

    @property
    def connections(self) -> int:
        """Number of connections made to the source."""
        return self._log.connections if self._log else 0

    @property
    def server(self) -> str:
        """The server that is read, `host:port`; "" before the first connection."""
        return ":".join(map(str, self._log.server)) if self._log else ""

    @property
    def is_publishing(self) -> bool:
        """Whether anything is read that is not published yet, its commits included."""
        return self._oldest_ms > 0

    def compute_lag_s(self) -> float:
        """Seconds since the commit of the oldest transaction that is read but not published; while the source is not
        heard, since it last sent anything."""
        oldest = self._oldest_ms
        if oldest:
            return max(0.0, time.time() - oldest / 1000)
        return 0.0 if self.is_heard else self.compute_silence_s()

    def compute_silence_s(self) -> float:
        """Seconds since the source last sent anything, a heartbeat included; before that, since this worker began."""
        heard = self._log.heard if self._log is not None else 0.0
        return time.monotonic() - max(heard, self._began)

    @property
    def is_heard(self) -> bool:
        """Whether the source's log is read now: connected, and not silent for longer than a heartbeat can be.

        While read transactions wait to be published, nothing more may be received, and the lag is known.
        """
        is_connected = self.state == "reading" and self._log is not None and not self._log.trouble
        return is_connected and (self.is_publishing or self.compute_silence_s() <= self.source.read_timeout)

    @property
    def _is_ending(self) -> bool:
        return self._is_over.is_set() or self._parts.stopped.is_set()

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._log = self._begin()
            self.state = "reading"
            self._publish_all(self._log)
            self.state = "stopped"
        except Stopped:
            self.state = "stopped"
        except BaseException as error:  # noqa: BLE001 - carried to the feeder, which decides what ends with it
            failure, self.failure, self.state = error, str(error) or repr(error), "failed"
            log.error("source_stopped", source=self.source.name, error=self.failure)
        self._ended(failure)

    def _publish_all(self, source_log: Log) -> None:
        reader = threading.Thread(
            target=self._read_all, args=(source_log,), name=f"log-{self.source.name}", daemon=True
        )
        reader.start()
        try:
            if self._loads is not None:
                self._loads.start()
            while not self._parts.stopped.is_set():
                self._advance_loads()
                try:
                    read = self._ready.get(timeout=self._compute_wait_s())
                except queue.Empty:
                    continue
                if isinstance(read, BaseException):
                    raise read
                self._publish(read)
        finally:
            if self._loads is not None:
                self._loads.end()
            self._is_over.set()
            source_log.close()
            reader.join()

    def _compute_wait_s(self) -> float:
        return _IDLE_S if self._loads is None else self._loads.compute_wait_s(_IDLE_S)

    def _advance_loads(self) -> None:
        """Begin a round of loads beside the log, if it is published up to now; it ends at once if nothing follows."""
        if self._loads is not None and self._ready.empty():
            self._loads.step()
            if self._loads.is_open:
                published = self._parts.journal.read_positions()[self.source.name].position
                self._loads.finish_if_reached(_Read([], published))

    def _read_all(self, source_log: Log) -> None:
        try:
            while not self._is_ending:
                batch = source_log.read(self.source.max_transactions, self.source.max_bytes, _IDLE_S)
                is_awaited = self._loads is not None and self._loads.is_open
                if (batch or is_awaited) and not self._hand_over(
                    _Read(batch, source_log.position, source_log.received_position)
                ):
                    break
        except BaseException as error:  # noqa: BLE001 - carried to the thread that publishes, which raises it
            self._hand_over(error)
        finally:
            source_log.end()

    def _hand_over(self, item: _Read | BaseException) -> bool:
        while not self._is_ending:
            try:
                self._ready.put(item, timeout=_IDLE_S)
            except queue.Full:
                continue
            return True
        return False

    def _publish(self, read: _Read) -> None:
        groups = list(_split_batch(read.transactions))
        # From here on only its group has a transaction, so that a large one can be given up when it is encoded.
        read.transactions.clear()
        while groups:
            group = groups.pop(0)
            self._oldest_ms = group[0].time_ms
            before = self._loads.count_before_round(group) if self._loads is not None else len(group)
            later = group[before:]
            del group[before:]
            self._publish_group(group)
            if later and self._loads is not None:
                self._loads.finish()
                self._publish_group(later)
        if self._loads is not None and self._loads.is_open:
            self._loads.finish_if_reached(read)
        self._oldest_ms = 0

    def _publish_group(self, group: list[SourceTransaction]) -> None:
        if not group:
            return
        if group[0].statement is not None:
            self._publish_statement(group[0], group[0].statement)
        else:
            self._publish_rows(group)
        counts = self.counts
        self.counts = replace(
            counts,
            log_bytes=counts.log_bytes + sum(transaction.size for transaction in group),
            last_ms=group[-1].time_ms,
        )

    def _publish_rows(self, group: list[SourceTransaction]) -> None:
        rows: list[int] = []
        if self._is_encoding_all and isinstance(group[0].changes, SpooledChanges):
            pieces = self._encode_in_pieces(group[0].changes, rows.append)
            outgoing = [Outgoing(group[0].id, group[0].time_ms, pieces=pieces)] if pieces else []
        else:
            outgoing = [
                Outgoing(transaction.id, transaction.time_ms, value)
                for transaction, value in zip(group, self._encode(group, rows.append), strict=True)
                if value
            ]
        if outgoing:
            self._parts.publisher.publish(self.source.name, outgoing, group[-1].end)
        else:
            self._move_position(group[-1])
        counts, left_out = self.counts, len(group) - len(outgoing)
        self.counts = replace(
            counts, transactions=counts.transactions + len(outgoing), left_out=counts.left_out + left_out,
            rows=counts.rows + sum(rows), batches=counts.batches + bool(outgoing),
        )  # fmt: skip

    @property
    def _is_encoding_all(self) -> bool:
        """Whether all rows of the log are encoded: none has to be left out because a load reads it later."""
        return self._loads is None or not self._loads.is_active

    def _encode_in_pieces(self, changes: SpooledChanges, on_rows: Callable[[int], None]) -> tuple[MessagePiece, ...]:
        """A large transaction, which is alone in its group, by way of a file beside that of its events."""
        return encode_in_pieces(
            changes,
            SpoolFile(changes.folder),
            functools.partial(self._parts.catalog.find_definition, self.source.name),
            self._parts.version,
            on_rows,
            self._guard(),
            self.source.invalid_text,
        )

    def _encode(self, group: Sequence[SourceTransaction], on_rows: Callable[[int], None]) -> list[bytes]:
        if self._loads is not None and not self._is_encoding_all:
            return self._loads.encode(group, self._guard(), on_rows)
        return encode_transactions(
            [transaction.changes for transaction in group],
            functools.partial(self._parts.catalog.find_definition, self.source.name),
            self._parts.version,
            on_rows,
            self._guard(),
            self.source.invalid_text,
        )

    def _guard(self) -> Guard | None:
        logged = self.source.unlogged_cascades == "none" or (self._log is not None and self._log.logs_cascades)
        return None if logged else self._parts.catalog.build_cascade_guard(self.source.name)

    def _publish_statement(self, transaction: SourceTransaction, statement: LoggedStatement) -> None:
        statements = self._apply_replacement(transaction, statement)
        while True:
            try:
                changes = self._follow_and_publish(transaction, statements)
            except SourceUnavailable as error:
                self._wait_for_tracker(error)
                continue
            break
        self.tracker_trouble = ""
        counts = self.counts
        self.counts = replace(counts, ddls=counts.ddls + len(changes), left_out=counts.left_out + (not changes))

    def _follow_and_publish(
        self, transaction: SourceTransaction, statements: Sequence[LoggedStatement]
    ) -> list[DefinitionChange]:
        """One attempt under the catalog's lock, which others can take while this source waits for its tracker."""
        parts = self._parts
        with parts.catalog.lock:
            changes = self._follow(transaction, statements)
            facts = self._loads.follow_statements(statements) if self._loads is not None else {}
            if changes:
                outgoing = [
                    Outgoing(
                        transaction.id, transaction.time_ms,
                        ddl=PublishedDdl(change.query, change.job_id, change.build_job, change.schema_state),
                    )
                    for change in changes
                ]  # fmt: skip
                commit_ts = self._publish_or_end_feeder(outgoing, transaction.end, facts)
                for change in changes:
                    log.info("feeder_ddl", source=self.source.name, query=change.query, commit_ts=str(commit_ts))
            else:
                self._move_position(transaction)
            parts.version = parts.catalog.version
        return changes

    def _publish_or_end_feeder(
        self, outgoing: Sequence[Outgoing], end: BinlogPosition, facts: Mapping[str, str]
    ) -> int:
        """The last commit_ts. Raises SharedFailure on errors: the catalog, which all share, already has the change."""
        try:
            return self._parts.publisher.publish(self.source.name, outgoing, end, facts)
        except BinlakeError as error:
            raise SharedFailure(error.message, hint=error.hint, where=error.where) from error

    def _apply_replacement(self, transaction: SourceTransaction, statement: LoggedStatement) -> list[LoggedStatement]:
        """`statement`, or what the configuration replaces it with."""
        replacement = self.source.find_replacement(transaction.id)
        if replacement is None:
            return [statement]
        log.warning(
            "source_statement_replaced", source=self.source.name, transaction=transaction.id,
            statement=statement.text, by=list(replacement.statements),
        )  # fmt: skip
        return [replace(statement, text=text) for text in replacement.statements]

    def _follow(self, transaction: SourceTransaction, statements: Sequence[LoggedStatement]) -> list[DefinitionChange]:
        try:
            return self._parts.catalog.follow_all(self.source.name, statements)
        except SchemaError as error:
            error.where.setdefault("transaction", transaction.id)
            raise

    def _wait_for_tracker(self, error: SourceUnavailable) -> None:
        if not self.tracker_trouble:
            log.warning("tracker_unavailable", source=self.source.name, error=str(error))
        self.tracker_trouble = str(error)
        if self._parts.stopped.wait(_RETRY_S):
            raise Stopped from error

    def _move_position(self, transaction: SourceTransaction) -> None:
        """Move the position past a transaction of which nothing is published."""
        name, journal = self.source.name, self._parts.journal
        known = journal.read_positions().get(name) or ReadPosition(transaction.end)
        journal.set_position(name, replace(known, position=transaction.end))


def _split_batch(batch: Sequence[SourceTransaction]) -> Iterator[list[SourceTransaction]]:
    """Consecutive transactions with rows together, each statement and each large transaction alone."""
    for is_alone, group in groupby(
        batch, key=lambda one: one.statement is not None or isinstance(one.changes, SpooledChanges)
    ):
        if is_alone:
            yield from ([transaction] for transaction in group)
        else:
            yield list(group)
