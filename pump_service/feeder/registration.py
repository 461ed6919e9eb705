"""The feeder's entry in PD's etcd: it distinguishes a lost, foreign or restored old folder from the right one.

A journal older than what was published would publish it again. So the journal's id, its number of starts and its last
commit_ts are in the registry too, and a feeder whose journal is behind them refuses to start (hazards R-10).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from binlake.cluster.placement import EtcdClient
from binlake.errors import Fenced, Permanent
from pump_service.feeder.journal import Journal

log = structlog.get_logger()

HEARTBEAT_S = 2.0
_STARTS, _CLUSTER = "starts", "cluster_id"
_RECOVERY_HINT = (
    "restore the newest folder of this feeder; if it is lost for good, use a new `name` and a new replication with its"
    " own lake (docs/operate/feeder.md)"
)


@dataclass(frozen=True)
class Entry:
    """`journal`: its id; `starts`: how often it was started; `last_commit_ts`: of what it published, slightly delayed;
    `place`: the folder it was last in, by machine and inode; `clean`: it was stopped, not killed."""

    journal: str
    starts: int
    last_commit_ts: str
    place: str
    clean: bool

    @classmethod
    def from_json(cls, text: bytes) -> Entry:
        """Parse the result of `to_json`."""
        values = json.loads(text)
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})

    def to_json(self) -> bytes:
        """For the registry."""
        return json.dumps(asdict(self)).encode()


class Registration:
    """The entry of the feeder `name` whose journal is in `folder`. Methods raise SourceUnavailable."""

    def __init__(self, etcd: EtcdClient, name: str, cluster_id: int, journal: Journal, folder: Path) -> None:
        self._etcd = etcd
        self._key = f"/binlake/v1/feeders/{name}".encode()
        self._name = name
        self._cluster_id = cluster_id
        self._journal = journal
        # A copied folder has another inode: the owner of the original may still be running.
        self._place = f"{socket.gethostname()}:{folder.resolve()}:{os.stat(folder).st_ino}"
        self._entry: Entry | None = None

    def begin(self, wait: Callable[[float], object]) -> None:
        """Claim the name. `wait`: sleeps for that many seconds. Raises Permanent if this folder must not be used."""
        journal = self._journal
        known = self._read()
        self._check_cluster()
        if known is not None:
            self._check(known)
            if known.place != self._place and not known.clean:
                wait(2 * HEARTBEAT_S)
                if self._read() != known:
                    raise Permanent(
                        "another feeder runs under this name", where={"name": self._name, "its_place": known.place},
                        hint="stop it first, or give this one a `name` and a folder of its own",
                    )  # fmt: skip
        elif journal.read_last_commit_ts():
            log.warning("feeder_registered_again", name=self._name, reason="its entry was not in PD's registry")
        starts = int(journal.read_fact(_STARTS) or 0) + 1
        # First the journal, then the registry: a crash in between leaves the journal ahead, which is safe.
        journal.set_facts({_STARTS: str(starts), _CLUSTER: str(self._cluster_id)})
        self._entry = Entry(journal.id, starts, str(journal.read_last_commit_ts()), self._place, clean=False)
        if not self._put(self._entry, known):
            raise Permanent("another feeder started under this name", where={"name": self._name})

    def renew(self) -> None:
        """Record how far the journal is. Raises Fenced if another process now has the name."""
        self._change(last_commit_ts=str(self._journal.read_last_commit_ts()))

    def end(self) -> None:
        """Record that the feeder was stopped."""
        self._change(last_commit_ts=str(self._journal.read_last_commit_ts()), clean=True)

    def _change(self, **values: object) -> None:
        known = self._entry
        assert known is not None
        after = replace(known, **values)  # type: ignore[arg-type]
        if after == known:
            if self._read() != known:
                raise self._make_fenced_error()
            return
        if not self._put(after, known):
            raise self._make_fenced_error()
        self._entry = after

    def _make_fenced_error(self) -> Fenced:
        return Fenced(
            "another feeder took this name: this one must not publish", where={"name": self._name},
            hint="two feeders run with one name, or this folder was copied; stop one of them",
        )  # fmt: skip

    def _check_cluster(self) -> None:
        known = self._journal.read_fact(_CLUSTER)
        if known and known != str(self._cluster_id):
            raise Permanent(
                "this folder belongs to a feeder of another cluster",
                where={"name": self._name, "its_cluster": known, "cluster": self._cluster_id}, hint="correct `pd-urls`",
            )  # fmt: skip

    def _check(self, known: Entry) -> None:
        journal = self._journal
        where = {"name": self._name, "its_place": known.place, "registered": known.last_commit_ts}
        if known.journal != journal.id:
            lost = not journal.read_fact(_STARTS)
            what = (
                "the folder is empty, but this feeder has published before"
                if lost
                else "the folder is another feeder's"
            )
            raise Permanent(what, where=where, hint=_RECOVERY_HINT)
        if (
            known.starts > int(journal.read_fact(_STARTS) or 0)
            or int(known.last_commit_ts) > journal.read_last_commit_ts()
        ):
            where["journal"] = str(journal.read_last_commit_ts())
            raise Permanent(
                "the folder is an old copy: it lacks what was published since", where=where, hint=_RECOVERY_HINT
            )

    def _read(self) -> Entry | None:
        stored = self._etcd.get(self._key)
        return Entry.from_json(stored.value) if stored else None

    def _put(self, entry: Entry, over: Entry | None) -> bool:
        """Put `entry` in place of `over`; returns whether it is there now, also if only the answer was lost."""
        stored = self._etcd.get(self._key)
        known = Entry.from_json(stored.value) if stored else None
        if known == entry:
            return True
        revision = stored.mod_revision if stored else 0
        return known == over and self._etcd.put_if(self._key, entry.to_json(), mod_revision=revision)
