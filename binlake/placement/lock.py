"""Mutual exclusion between machines by an etcd lease: the key names the holder and ends with it."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from binlake.errors import LeaseHeld
from binlake.placement.etcd import EtcdClient


class EtcdLock:
    """`with EtcdLock(etcd, "name", owner="host:pid")`: waits up to `wait_s`, then LeaseHeld names the holder."""

    def __init__(self, etcd: EtcdClient, name: str, owner: str, *, ttl_s: int = 15, wait_s: float = 60.0) -> None:
        self._etcd = etcd
        self._key = f"/binlake/v1/locks/{name}".encode()
        self._owner = owner
        self._ttl_s = ttl_s
        self._wait_s = wait_s
        self._lease = 0
        self._released = threading.Event()
        self._keeper: threading.Thread | None = None

    def __enter__(self) -> EtcdLock:
        """Take the lock. Raises LeaseHeld, SourceUnavailable."""
        self._lease = self._etcd.lease_grant(self._ttl_s)
        deadline = time.monotonic() + self._wait_s
        while not self._etcd.put_if(self._key, self._owner.encode(), mod_revision=0, lease=self._lease):
            if time.monotonic() >= deadline:
                self._etcd.lease_revoke(self._lease)
                raise self._held()
            time.sleep(0.2)
        self._released.clear()
        self._keeper = threading.Thread(target=self._keep, name="etcd-lock", daemon=True)
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        if self._keeper is not None:
            self._keeper.join()
        self._etcd.lease_revoke(self._lease)

    def _keep(self) -> None:
        while not self._released.wait(self._ttl_s / 3):
            if self._etcd.lease_keep_alive(self._lease) <= 0:
                return

    def _held(self) -> LeaseHeld:
        found = self._etcd.get(self._key)
        holder = found.value.decode() if found else "a holder that has just gone"
        return LeaseHeld(f"the lock is held by {holder}", where={"lock": self._key.decode()}, hint="wait, or end it")
