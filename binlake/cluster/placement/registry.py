"""The registry of pumps and consumers in etcd, with the original's keys and guards (docs/reference/formats.md 3.1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from binlake.cluster.node import OFFLINE, PAUSED, RESTING, STATES, NodeStatus
from binlake.cluster.placement.etcd import EtcdClient, EtcdWatch
from binlake.errors import ConfigError, Permanent, Transient
from binlake.wire import etcd_pb2 as pb

ROOT = "/tidb-binlog/v1"
PUMPS = f"{ROOT}/pumps/"
DRAINERS = f"{ROOT}/drainers/"
CATALOG = b"/binlake/v1/catalog"
"""The feeder whose numbers the tables of this PD have, and the id of its journal, as JSON."""
_TIDB_SERVERS = b"/tidb/server/info/"
"""Where each running TiDB server of the cluster has an entry, under its id."""
_TRIES = 20


@dataclass(frozen=True)
class RegistryEntry:
    """One entry, with the ModRevision that guards its next change."""

    status: NodeStatus
    revision: int


class PumpsWatch:
    """The `pumps` of one listing, and by iteration every later change: (node id, its entry or None if deleted).

    Iteration continues until `close`; it raises SourceUnavailable, LostRange, and WireError for an unreadable entry.
    """

    def __init__(self, pumps: list[NodeStatus], watch: EtcdWatch) -> None:
        self.pumps = pumps
        self._watch = watch

    def __iter__(self) -> Iterator[tuple[str, NodeStatus | None]]:
        for _, event in self._watch:
            key = _decode_key(event.kv.key)
            is_deleted = event.type == pb.Event.DELETE
            yield key.removeprefix(PUMPS), None if is_deleted else NodeStatus.from_json(event.kv.value, key)

    def close(self) -> None:
        """End the watch, from any thread."""
        self._watch.cancel()


class NodeRegistry:
    """Reads and writes entries. Raises SourceUnavailable, WireError, Transient after lost races, Permanent."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    def list_pumps(self) -> list[NodeStatus]:
        """All pumps by node id, including offline ones (linearizable)."""
        return self._list(PUMPS)

    def watch_pumps(self) -> PumpsWatch:
        """All current pumps, and all later changes, without a gap between the two."""
        entries, revision = self._etcd.read_prefix(PUMPS.encode())
        pumps = [NodeStatus.from_json(entry.value, _decode_key(entry.key)) for entry in entries]
        return PumpsWatch(pumps, self._etcd.watch(PUMPS.encode(), revision + 1))

    def list_drainers(self) -> list[NodeStatus]:
        """All consumers by node id, including offline ones."""
        return self._list(DRAINERS)

    def find_feeder(self) -> str:
        """The name of the feeder whose numbers the tables of this PD have; "" = not known."""
        stored = self._etcd.get(CATALOG)
        return str(json.loads(stored.value)["feeder"]) if stored is not None else ""

    def list_tidb_servers(self) -> frozenset[str]:
        """The ids of the TiDB servers that are registered at this PD; none if it has no TiDB, or does not list them."""
        entries, _ = self._etcd.read_prefix(_TIDB_SERVERS)
        return frozenset(_decode_key(entry.key).rpartition("/")[2] for entry in entries)

    def find_pump(self, node_id: str) -> RegistryEntry | None:
        """The entry of one pump, or None."""
        return self._find_entry(PUMPS + node_id)

    def find_drainer(self, node_id: str) -> RegistryEntry | None:
        """The entry of one consumer, or None."""
        return self._find_entry(DRAINERS + node_id)

    def write_pump(self, status: NodeStatus, revision: int) -> int:
        """Write a pump's entry if its ModRevision is `revision` (0 = no entry yet).

        Returns the new ModRevision, or 0 if the entry has been changed by others. After SourceUnavailable the write
        may have been done: read again.
        """
        key = (PUMPS + status.node_id).encode()
        holds = pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=revision)
        put = pb.RequestOp(request_put=pb.PutRequest(key=key, value=status.to_json()))
        answer = self._etcd.run_transaction([holds], [put])
        written: int = answer.header.revision
        return written if answer.succeeded else 0

    def set_pump_state(self, node_id: str, state: str) -> NodeStatus:
        """Rewrite only the state in a pump's entry (binlogctl update-pump); returns the previous entry.

        Raises Permanent for an unknown node, ConfigError for an invalid state.
        """
        return self._set_state(PUMPS + node_id, state)

    def set_drainer_state(self, node_id: str, state: str) -> NodeStatus:
        """Rewrite only the state in a consumer's entry (binlogctl update-drainer); returns the previous entry."""
        return self._set_state(DRAINERS + node_id, state)

    def pause_replication(self, node_id: str) -> NodeStatus:
        """Set a replication's entry to PAUSED; returns the previous entry. Raises Permanent if it is offline.

        From `offline`, pumps would wait again for binlogs that they may have deleted: that needs `resume-drainer`.
        """
        return self._set_state(DRAINERS + node_id, PAUSED, unless=OFFLINE)

    def put_pump(self, status: NodeStatus) -> None:
        """Create or replace a pump's entry; durable when the call returns."""
        self._change(PUMPS + status.node_id, lambda _: status)

    def put_drainer(self, status: NodeStatus) -> None:
        """Create or replace a consumer's entry; durable when the call returns."""
        self._change(DRAINERS + status.node_id, lambda _: status)

    def publish_drainer(self, node_id: str, max_commit_ts: int, update_ts: int = 0, *, host: str = "") -> None:
        """Record how far a batch consumer has landed, for closing pumps; the rest of its entry does not change.

        A new entry is `paused`: pumps respect its position but do not notify it, since it has no process (hazards
        R-05). `host`: a pump of Binlake that answers binlogctl for it (empty: unchanged).
        """

        key = DRAINERS + node_id

        def move_entry(known: bytes | None) -> NodeStatus:
            entry = NodeStatus(node_id, "", RESTING) if known is None else NodeStatus.from_json(known, key)
            return replace(
                entry, max_commit_ts=max_commit_ts, update_ts=update_ts or max_commit_ts, host=host or entry.host
            )

        self._change(key, move_entry)

    def _list(self, prefix: str) -> list[NodeStatus]:
        entries, _ = self._etcd.read_prefix(prefix.encode())
        return [NodeStatus.from_json(entry.value, _decode_key(entry.key)) for entry in entries]

    def _find_entry(self, key: str) -> RegistryEntry | None:
        entry = self._etcd.get(key.encode())
        return RegistryEntry(NodeStatus.from_json(entry.value, key), entry.mod_revision) if entry else None

    def _set_state(self, key: str, state: str, unless: str = "") -> NodeStatus:
        before: list[NodeStatus] = []

        def change_entry(known: bytes | None) -> NodeStatus:
            if known is None:
                raise build_unknown_node_error(key)
            if state not in STATES:
                raise ConfigError(f"state {state} is illegal", hint=f"one of {', '.join(sorted(STATES))}")
            before.append(NodeStatus.from_json(known, key))
            if before[-1].state == unless:
                raise Permanent(
                    f"its state is {unless}", where={"key": key}, hint="`binlake resume-drainer` ends that state first"
                )
            return replace(before[-1], state=state)

        self._change(key, change_entry)
        return before[-1]

    def _change(self, key: str, change: Callable[[bytes | None], NodeStatus]) -> None:
        # Created if ModRevision = 0, replaced if it is still the ModRevision that was read: no change is lost.
        name = key.encode()
        for _ in range(_TRIES):
            entry = self._etcd.get(name)
            status = change(entry.value if entry else None)
            if self._etcd.put_if(name, status.to_json(), mod_revision=entry.mod_revision if entry else 0):
                return
        raise Transient(
            "other processes keep changing this registry entry",
            where={"key": key},
            hint="check whether two nodes have one id",
        )


def _decode_key(key: bytes) -> str:
    """The key as text, whatever its bytes, since one malformed key must not break every listing."""
    return key.decode(errors="backslashreplace")


def build_unknown_node_error(key: str) -> Permanent:
    """The error for a node that is not in the registry, with the original's text."""
    return Permanent(f"key {key} in etcd not found", hint="`binlake pumps` and `binlake drainers` list the nodes")
