"""A lock in an object store: one object, changed only by conditional puts, that its holder renews.

Rule: a lease is taken over only after it was watched, by this process's own steady clock, for LEASE_S without a
renewal: the clocks of the machines are not compared. A holder that was stopped for longer and wakes up finds that its
object has changed. Until it looks, its commits are refused, because who takes a lease over commits to the tables first
(`Fence`), and no commit of these tables is retried on a newer version.
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

from binlake.errors import BinlakeError, LeaseHeld, Transient
from binlake.lake.damage import describe_storage_text, translate_object_store_error

if TYPE_CHECKING:
    from obstore.store import S3Store

log = structlog.get_logger(__name__)

LEASE_S = 30.0
"""Without a renewal for this long, a lease may be taken over."""
RENEW_S = LEASE_S / 5
_POLL_S = 0.5


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


@contextmanager
def hold_lease(objects: S3Store, name: str, *, wait_s: float, fence: Callable[[], None]) -> Iterator[None]:
    """Hold the lease `name`; `fence` is called before the block if its last holder did not release it.

    Waits up to `wait_s` seconds, and at least as long as a dead holder's lease lasts. Raises LeaseHeld; Transient
    at the end of the block if another process has taken it over.
    """
    path = f"_locks/{name}.lease"
    stored, taken_over = _take(objects, path, wait_s)
    renewal = _Renewal(objects, path, stored)
    try:
        if taken_over:
            log.warning("lease_taken_over", lock=path, epoch=stored.lease.epoch)
            fence()
        yield
    finally:
        renewal.stop()
    renewal.require_held()


def find_lease_holder(objects: S3Store, name: str) -> str:
    """The holder of the lease `name`, or "" if it is free, or not renewed for LEASE_S by this machine's clock."""
    stored = _read(objects, f"_locks/{name}.lease")
    if stored is None or stored.lease.released:
        return ""
    return "" if (datetime.now(UTC) - stored.written).total_seconds() > LEASE_S else stored.lease.holder


def _take(objects: S3Store, path: str, wait_s: float) -> tuple[_Stored, bool]:
    """The lease, now this process's, and whether it was taken over from a holder that did not release it."""
    started = time.monotonic()
    seen, seen_at = _read(objects, path), started
    while True:
        if seen is None or seen.lease.released or time.monotonic() - seen_at >= LEASE_S:
            mine = _Lease(_name_this_process(), uuid.uuid4().hex, 1 if seen is None else seen.lease.epoch + 1)
            taken = _write(objects, path, mine, None if seen is None else seen.tag)
            if taken is not None:
                return taken, seen is not None and not seen.lease.released
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

    def __init__(self, objects: S3Store, path: str, stored: _Stored) -> None:
        self._objects, self._path, self._stored = objects, path, stored
        self._ended, self._lost = threading.Event(), False
        self._thread = threading.Thread(target=self._renew, name=f"lease {path}", daemon=True)
        self._thread.start()

    def require_held(self) -> None:
        """Require that no other process has taken the lease over. Raises Transient."""
        if self._lost:
            raise Transient(
                "the lake's lock was taken over by another process: this one did not renew it in time",
                where={"lock": self._path},
                hint="was this process stopped, or the object store out of reach? The stage can run again",
            )

    def stop(self) -> None:
        """End the renewals; release the lease if it is still held."""
        self._ended.set()
        self._thread.join()
        if not self._lost:
            self._write(replace(self._stored.lease, released=True))

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
        if written is None or written.lease.owner != lease.owner:
            self._lost = True
        else:
            self._stored = written


def _read(objects: S3Store, path: str) -> _Stored | None:
    import obstore

    with _translate_errors(path):
        try:
            found = obstore.get(objects, path)
        except FileNotFoundError:
            return None
        return _Stored(
            _Lease(**json.loads(bytes(found.bytes()))), str(found.meta["e_tag"]), found.meta["last_modified"]
        )


def _write(objects: S3Store, path: str, lease: _Lease, tag: str | None) -> _Stored | None:
    """Write the lease if the object still has `tag` (None: does not exist); None if it has not."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    with _translate_errors(path):
        try:
            put = obstore.put(
                objects,
                path,
                json.dumps(asdict(lease)).encode(),
                mode="create" if tag is None else {"e_tag": tag},
            )
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            return None
        return _Stored(lease, str(put["e_tag"]), datetime.now(UTC))


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        failure = translate_object_store_error(error)
        if failure is None:
            failure = Transient(
                f"the lake's lock cannot be used: {describe_storage_text(error)}", where={"object": path}
            )
        raise failure from error


def _name_this_process() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"
