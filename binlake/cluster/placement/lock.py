"""Mutual exclusion between machines by an etcd lease: the key names the holder, and ends with its lease."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import structlog

from binlake.cluster.placement.etcd import EtcdClient
from binlake.errors import BinlakeError, Fenced, LeaseHeld

log = structlog.get_logger(__name__)

_POLL_S = 0.2


class EtcdLock:
    """`with EtcdLock(etcd, "name", owner="host:pid") as lock`: waits up to `wait_s`, then LeaseHeld names the holder.

    The lease of `ttl_s` is renewed in the background. A holder that cannot renew it loses the lock: call `check` before
    each step that must not be done twice.
    """

    def __init__(self, etcd: EtcdClient, name: str, owner: str, *, ttl_s: int = 15, wait_s: float = 60.0) -> None:
        self._etcd = etcd
        self._key = f"/binlake/v1/locks/{name}".encode()
        self._owner = owner
        self._ttl_s = ttl_s
        self._wait_s = wait_s
        self._lease = 0
        self._held_until = 0.0
        self._released = threading.Event()
        self._keeper: threading.Thread | None = None

    def __enter__(self) -> EtcdLock:
        """Take the lock. Raises LeaseHeld, SourceUnavailable."""
        self._held_until = time.monotonic() + self._ttl_s
        self._lease = self._etcd.grant_lease(self._ttl_s)
        self._released.clear()
        self._keeper = threading.Thread(target=self._keep_alive, name="etcd-lock", daemon=True)
        self._keeper.start()
        try:
            self._acquire()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def check(self) -> None:
        """Raises Fenced if the lease may have expired, so that another process may hold the lock by now."""
        if time.monotonic() >= self._held_until:
            raise Fenced("the lock's lease was not renewed in time", where={"lock": self._key.decode()})

    def _acquire(self) -> None:
        deadline = time.monotonic() + self._wait_s
        while not self._etcd.put_if(self._key, self._owner.encode(), mod_revision=0, lease=self._lease):
            if time.monotonic() >= deadline:
                raise self._build_held_error()
            time.sleep(_POLL_S)

    def _release(self) -> None:
        self._released.set()
        if self._keeper is not None:
            self._keeper.join()
        try:
            self._etcd.revoke_lease(self._lease)
        except BinlakeError as error:
            log.warning("lock_left_to_its_lease", lock=self._key.decode(), seconds=self._ttl_s, error=str(error))

    def _keep_alive(self) -> None:
        while not self._released.wait(self._ttl_s / 3):
            requested_at = time.monotonic()
            try:
                if self._etcd.keep_lease_alive(self._lease) <= 0:
                    self._held_until = 0.0
                    return
                self._held_until = requested_at + self._ttl_s
            except BinlakeError as error:
                log.warning("lease_not_renewed", lock=self._key.decode(), error=str(error))

    def _build_held_error(self) -> LeaseHeld:
        entry = self._etcd.get(self._key)
        holder = entry.value.decode() if entry else "a process that has just ended"
        return LeaseHeld(
            f"the lock is held by {holder}", where={"lock": self._key.decode()}, hint="wait, or stop that process"
        )
