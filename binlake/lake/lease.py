"""A lock in an object store: one object, changed only by conditional puts, that its holder renews.

Rule: a lease is taken over only after it was watched, by this process's own steady clock, for LEASE_S without a
renewal: the clocks of the machines are not compared. A holder that was stopped for longer and wakes up finds that its
object has changed: it looks before it opens a table (`require_leases`). Commits to tables that it had opened before are
refused, because who takes a lease over commits to the tables first (`fence`), and no commit of these tables is retried
on a newer version.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from binlake.common.process import read_clock_s
from binlake.errors import BinlakeError, LeaseHeld, Transient
from binlake.lake.objects import translate_errors

if TYPE_CHECKING:
    from binlake.lake.access import Objects

log = structlog.get_logger(__name__)

LEASE_S = 30.0
"""Without a renewal for this long, a lease may be taken over."""
RENEW_S = LEASE_S / 5
_POLL_S = 0.5
_SURE = 0.8
"""The part of LEASE_S for which a holder needs no look: its clock and that of another machine may run unequally."""


_PLACE = frozenset({"bucket", "container_name", "account_name"})
"""Settings of a client that say where its objects are."""


@dataclass(frozen=True)
class _Lease:
    """The content of the object. `epoch`: how often it was taken; `beat`: renewals by this holder."""

    holder: str
    owner: str
    epoch: int
    beat: int = 0
    released: bool = False


@dataclass(frozen=True)
class _Stored:
    """A lease as it is in the store; `tag` changes with each put."""

    lease: _Lease
    tag: str
    written: datetime = field(compare=False)
    since_s: float = field(compare=False)
    """By this machine's clock, a time before it was written; from then on no other process takes it for LEASE_S."""


@dataclass(frozen=True, eq=False)
class _Term:
    """The time in which nobody but this process held a lease, whether it released it in between or not."""


_terms: dict[str, _Term] = {}
"""By object, the term in which this process released the lease last."""
_released: dict[str, _Stored] = {}
"""By object, the leases as this process released them."""
_held: set[_Renewal] = set()
"""Those of the leases that this process holds."""


@contextmanager
def hold_lease(
    objects: Objects,
    name: str,
    *,
    wait_s: float,
    fence: Callable[[], None],
    guards: Callable[[str], bool] = lambda _: False,
) -> Iterator[bool]:
    """Hold the lease `name`; `fence` is called before the block if its last holder did not release it.

    Yields whether another process may have held it since this one did. `guards`: whether a table, by its path, is
    written only under this lease. Waits up to `wait_s` seconds, and at least as long as a dead holder's lease lasts.
    Raises LeaseHeld; Transient at the end of the block if another process has taken it over.
    """
    path = f"_locks/{name}.lease"
    key = _name_object(objects, path)
    stored, taken_over, continues = _take(objects, path, wait_s)
    term = _terms.get(key) if continues else None
    renewal = _Renewal(objects, path, stored, guards, term or _Term())
    _held.add(renewal)
    try:
        if taken_over:
            log.warning("lease_taken_over", lock=path, epoch=stored.lease.epoch)
            fence()
        yield term is None
    finally:
        _held.discard(renewal)
        renewal.stop()
        _terms[key] = renewal.term
    renewal.require_held()


def find_term(table: str) -> object | None:
    """While this process holds the lease under which alone the table at path `table` is written: the term.

    The same object means that nobody else has held the lease in between. None: it does not hold it.
    """
    return next((renewal.term for renewal in tuple(_held) if renewal.guards(table)), None)


def require_leases() -> None:
    """After a table was opened: require that this process holds its leases, which it may have slept through.

    Who takes one over from now on commits to the table after it was opened. Raises Transient.
    """
    for renewal in tuple(_held):
        renewal.require_fresh()


def find_lease_holder(objects: Objects, name: str) -> str:
    """The holder of the lease `name`, or "" if it is free, or not renewed for LEASE_S by this machine's clock."""
    stored = _read(objects, f"_locks/{name}.lease")
    if stored is None or stored.lease.released:
        return ""
    return "" if (datetime.now(UTC) - stored.written).total_seconds() > LEASE_S else stored.lease.holder


def _take(objects: Objects, path: str, wait_s: float) -> tuple[_Stored, bool, bool]:
    """The lease, now this process's, and whether it was taken over from a holder that did not release it; whether this
    process was the last holder."""
    started, owner = time.monotonic(), uuid.uuid4().hex
    # What this process released is often still so: then no look is needed, and the put is refused if it is not.
    own = _released.pop(_name_object(objects, path), None)
    seen, seen_at = _read(objects, path) if own is None else own, started
    while True:
        if seen is None or seen.lease.released or time.monotonic() - seen_at >= LEASE_S:
            mine = _Lease(_name_this_process(), owner, 1 if seen is None else seen.lease.epoch + 1)
            taken = _write_surely(objects, path, mine, None if seen is None else seen.tag)
            if taken is not None:
                return taken, seen is not None and not seen.lease.released, seen is not None and seen is own
        now = _read(objects, path)
        if now != seen:
            seen, seen_at = now, time.monotonic()
            if seen is not None and not seen.lease.released and time.monotonic() - started >= wait_s:
                raise LeaseHeld(
                    f"the lake is being written by {seen.lease.holder}",
                    where={"lock": path},
                    hint="wait for that process, or end it: its lease then ends after half a minute",
                )
        elif seen is not None and not seen.lease.released:
            time.sleep(_POLL_S)


class _Renewal:
    """Renews a lease in a thread until `stop`, which releases it."""

    def __init__(
        self, objects: Objects, path: str, stored: _Stored, guards: Callable[[str], bool], term: _Term
    ) -> None:
        self._objects, self._path, self._stored = objects, path, stored
        self.guards, self.term = guards, term
        self._ended, self._lost, self._taker = threading.Event(), False, ""
        self._thread = threading.Thread(target=self._renew, name=f"lease {path}", daemon=True)
        self._thread.start()

    def require_held(self) -> None:
        """Require that no other process has taken the lease over. Raises Transient."""
        if self._lost:
            raise Transient(
                f"the lake's lock was taken over by {self._taker}: this process did not renew it in time",
                where={"lock": self._path},
                hint="was this process stopped, or the object store out of reach? The stage can run again",
            )

    def require_fresh(self) -> None:
        """As `require_held`, now: looks at the object unless it was renewed lately."""
        if read_clock_s() - self._stored.since_s > _SURE * LEASE_S:
            found = _read(self._objects, self._path)
            if not self._is_own(found):
                self._lose(found)
        self.require_held()

    def stop(self) -> None:
        """End the renewals; release the lease if it is still held."""
        self._ended.set()
        self._thread.join()
        if not self._lost:
            self._write(replace(self._stored.lease, released=True))
            if self._stored.lease.released:
                _released[_name_object(self._objects, self._path)] = self._stored

    def _renew(self) -> None:
        while not self._lost and not self._ended.wait(RENEW_S):
            self._write(replace(self._stored.lease, beat=self._stored.lease.beat + 1))

    def _write(self, lease: _Lease) -> None:
        try:
            written = _write(self._objects, self._path, lease, self._stored.tag)
            if written is None:
                # A put whose answer was lost may have been written: then the object is this process's own.
                written = _read(self._objects, self._path)
        except BinlakeError as error:
            log.warning("lease_not_renewed", lock=self._path, error=str(error))
            return
        if written is not None and self._is_own(written):
            self._stored = written
        else:
            self._lose(written)

    def _is_own(self, found: _Stored | None) -> bool:
        return found is not None and found.lease.owner == self._stored.lease.owner

    def _lose(self, found: _Stored | None) -> None:
        self._lost, self._taker = True, "another process" if found is None else found.lease.holder


def _write_surely(objects: Objects, path: str, lease: _Lease, tag: str | None) -> _Stored | None:
    """As `_write`; a put whose answer was lost is looked at."""
    try:
        written, lost = _write(objects, path, lease, tag), None
    except Transient as error:
        written, lost = None, error
    if written is not None:
        return written
    found = _read(objects, path)
    if found is not None and found.lease == lease:
        return found
    if lost is not None:
        raise lost
    return None


def _name_object(objects: Objects, path: str) -> str:
    config = {name: value for name, value in objects.config.items() if name in _PLACE}
    return f"{config}/{objects.prefix}/{path}"


def _read(objects: Objects, path: str) -> _Stored | None:
    import obstore

    with translate_errors(path):
        try:
            found = obstore.get(objects, path)
        except FileNotFoundError:
            return None
        lease = _Lease(**json.loads(bytes(found.bytes())))
        return _Stored(lease, str(found.meta["e_tag"]), found.meta["last_modified"], float("-inf"))


def _write(objects: Objects, path: str, lease: _Lease, tag: str | None) -> _Stored | None:
    """Write the lease if the object still has `tag` (None: does not exist); None if it has not."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    since_s = read_clock_s()
    with translate_errors(path):
        try:
            put = obstore.put(
                objects,
                path,
                json.dumps(asdict(lease)).encode(),
                mode="create" if tag is None else {"e_tag": tag},
            )
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            return None
        return _Stored(lease, str(put["e_tag"]), datetime.now(UTC), since_s)


def _name_this_process() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"
