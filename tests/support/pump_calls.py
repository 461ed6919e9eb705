"""A pump's calls inside this process, for callers that may block: one write, and pulls without a transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

from binlake.errors import BinlakeError
from pump_service.pump.pull import Reader, catch_up
from pump_service.pump.service import PumpService
from pump_service.pump.storage import Storage
from pump_service.pump.transaction_batch import Transaction

_LOOK_S = 1.0  # how long a pull sleeps at most before it asks `give_up` again


def write_binlog(service: PumpService, cluster_id: int, payload: bytes) -> Future[None] | None:
    """Store a binlog; its future is done when it is durable (None: an empty payload is only a probe).

    Raises what `PumpService.submit` raises.
    """
    stored: Future[None] = Future()

    def done(error: BinlakeError | None) -> None:
        if error is None:
            stored.set_result(None)
        else:
            stored.set_exception(error)

    service.submit(cluster_id, payload, done)
    return stored if payload else None


def pull(storage: Storage, after_ts: int, give_up: Callable[[], bool]) -> Iterator[Transaction]:
    """Endless: every transaction and fake with commit_ts > `after_ts`, as soon as the watermark covers it.

    Ends when `give_up()` says so (`Storage.wake` makes it ask at once). Raises what `catch_up` raises.
    """
    for batch in pull_batches(storage, after_ts, give_up):
        for transaction in batch:
            yield transaction
            if give_up():
                return
        del batch, transaction  # they may be large, and the next ones may be long in coming


def pull_batches(storage: Storage, after_ts: int, give_up: Callable[[], bool]) -> Iterator[list[Transaction]]:
    """As `pull`, some MiB at once; what precedes an error is yielded before it is raised."""
    reader, last = Reader(storage), after_ts
    while not give_up():
        for read_to, found in catch_up(reader, last, give_up):
            last = read_to
            if found:
                yield found.transactions()
        storage.wait_above(last, _LOOK_S, give_up)
