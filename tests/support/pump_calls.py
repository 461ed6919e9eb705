"""A pump's calls within this process, for callers that may block: one write, and pulls without a transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

from binlake.errors import BinlakeError
from binlake.pump_service.pump.batches import Transaction
from binlake.pump_service.pump.pull import StreamReader, catch_up
from binlake.pump_service.pump.service import PumpService
from binlake.pump_service.pump.storage import PumpStorage

_LOOK_S = 1.0  # how long a pull sleeps at most before it asks `give_up` again


def write_binlog(service: PumpService, cluster_id: int, payload: bytes) -> Future[None] | None:
    """Store a binlog and wait until it is durable; an empty payload is only a probe.

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


def pull(storage: PumpStorage, after_ts: int, give_up: Callable[[], bool]) -> Iterator[Transaction]:
    """Yield every transaction and fake with commit_ts > `after_ts`, as soon as the watermark covers it; endless.

    Ends when `give_up()` is true (`PumpStorage.wake` makes it check at once). Raises what `catch_up` raises.
    """
    for batch in pull_batches(storage, after_ts, give_up):
        for transaction in batch:
            yield transaction
            if give_up():
                return
        del batch, transaction  # Release them before waiting: they may be large, and the next ones may take long.


def pull_batches(storage: PumpStorage, after_ts: int, give_up: Callable[[], bool]) -> Iterator[list[Transaction]]:
    """As `pull`, but in batches of some MiB; yields everything before an error, then raises it."""
    reader, last = StreamReader(storage), after_ts
    while not give_up():
        for read_to, found in catch_up(reader, last, give_up):
            last = read_to
            if found:
                yield found.list_transactions()
        storage.wait_above(last, _LOOK_S, give_up)
