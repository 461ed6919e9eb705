"""Mutual exclusion between machines by an etcd lease: the key names the holder, and ends with its lease.

`EtcdLock` waits for its turn. `EtcdClaim` is a name that one process at a time owns: a process that starts while
another one owns the name waits for the length of a lease, in case that one has crashed, and is then refused. An owner
that was suspended for longer than its lease learns at its next renewal whether another process has taken the name.
"""

from __future__ import annotations

import threading
import time
import uuid
from types import TracebackType

import structlog

from binlake.cluster.placement.etcd import EtcdClient, KeyValue
from binlake.errors import BinlakeError, Fenced, LeaseHeld, Permanent

log = structlog.get_logger(__name__)

_POLL_S = 0.2
_MARGIN_S = 3.0  # how long after its expiry a server may end a lease


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


class EtcdClaim:
    """A claim on one name. `store`: id of the data directory; since this process has locked the directory, another
    holder with the same store has ended.

    `where`: address of the holder, for people. `ttl_s`: of the lease. Methods raise SourceUnavailable.
    """

    def __init__(self, etcd: EtcdClient, name: str, store: str, where: str, *, ttl_s: int = 10) -> None:
        self._etcd = etcd
        self._name = name
        self._key = f"/binlake/v1/claims/{name}".encode()
        self._store = store
        self._value = f"{store} {uuid.uuid4()} {where}".encode()
        self._ttl_s = ttl_s
        self._lease = 0

    def take(self) -> None:
        """Acquire the name. Raises Permanent if another live process has it."""
        give_up_at = time.monotonic() + self._ttl_s + _MARGIN_S
        while True:
            entry = self._etcd.get(self._key)
            if entry is None or _read_part(entry, 0) == self._store:
                if self._replace_entry(entry):
                    return
            elif time.monotonic() >= give_up_at:
                raise Permanent(
                    "another process runs under this node id, at the same address or another one",
                    where={"node": self._name, "its_store": _read_part(entry, 0), "its_addr": _read_part(entry, 2)},
                    hint="only one process may have a node id: stop the other one, or choose another --node-id",
                )
            else:
                time.sleep(_POLL_S)

    def renew(self) -> None:
        """Renew the lease. Raises Fenced if another process has the name now."""
        entry = self._etcd.get(self._key)
        if entry is not None and entry.value == self._value and self._etcd.keep_lease_alive(self._lease) > 0:
            return
        if entry is None or entry.value == self._value:
            if self._replace_entry(entry):
                log.warning("claim_taken_again", name=self._name)
                return
            entry = self._etcd.get(self._key)
        raise Fenced(
            "another process took this node id: this process must stop serving",
            where={"node": self._name, "its_store": _read_part(entry, 0), "its_addr": _read_part(entry, 2)},
            hint="two processes run with one node id; give each of them another one",
        )

    def release(self) -> None:
        """Release the name. Never raises: a lease that cannot be revoked expires."""
        try:
            if self._lease:
                self._etcd.revoke_lease(self._lease)
        except BinlakeError as error:
            log.warning("claim_left_to_its_lease", name=self._name, seconds=self._ttl_s, error=str(error))

    def _replace_entry(self, entry: KeyValue | None) -> bool:
        """Replace the entry that was read, with a new lease; False if it has changed since."""
        self._lease = self._etcd.grant_lease(self._ttl_s)  # the previous lease expires by itself
        revision = entry.mod_revision if entry else 0
        return self._etcd.put_if(self._key, self._value, mod_revision=revision, lease=self._lease)


def _read_part(entry: KeyValue | None, number: int) -> str:
    """A part of a claim's value: store, run, address."""
    parts = entry.value.decode(errors="replace").split(" ", 2) if entry is not None else []
    return parts[number] if number < len(parts) else ""
