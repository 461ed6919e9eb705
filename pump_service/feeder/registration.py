"""The feeder's entry in PD's etcd: it distinguishes a lost, foreign or restored old folder from the right one.

A journal older than what was published would publish it again. So the journal's id, its number of starts and its last
commit_ts are in the registry too, and a feeder whose journal is behind them refuses to start (hazards R-10).

A PD has one feeder: each one numbers its tables and schema versions itself, from the same number on, and the pumps
give the rows of all to every replication.
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
from binlake.cluster.placement.registry import CATALOG
from binlake.errors import Fenced, Permanent
from binlake.pump_service.feeder.journal import FeederJournal

log = structlog.get_logger()

HEARTBEAT_S = 2.0
_STARTS, _CLUSTER = "starts", "cluster_id"
_FEEDERS = b"/binlake/v1/feeders/"
_TIDB = b"/topology/tidb/"
_RECOVERY_HINT = (
    "restore the newest folder of this feeder; if it is lost for good, start a new feeder with a PD, pumps and a lake"
    " of its own (docs/operate/feeder.md)"
)
_ALONE_HINT = (
    "add the sources as [[source]] to the feeder that the PD has; or give this one a PD, pumps and a replication of its"
    " own (docs/operate/feeder.md)"
)


@dataclass(frozen=True)
class FeederEntry:
    """`journal`: its id; `starts`: how often it was started; `last_commit_ts`: of what it published, slightly delayed;
    `place`: the folder it was last in, by machine and inode; `clean`: it was stopped, not killed."""

    journal: str
    starts: int
    last_commit_ts: str
    place: str
    clean: bool

    @classmethod
    def from_json(cls, text: bytes) -> FeederEntry:
        """Parse the result of `to_json`."""
        values = json.loads(text)
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})

    @property
    def owner(self) -> tuple[str, int, str]:
        """What no two running feeders share: a copied folder is in another place, and each start has its number."""
        return self.journal, self.starts, self.place

    def to_json(self) -> bytes:
        """For the registry."""
        return json.dumps(asdict(self)).encode()


class Registration:
    """The entry of the feeder `name` whose journal is in `folder`. Methods raise SourceUnavailable."""

    def __init__(self, etcd: EtcdClient, name: str, cluster_id: int, journal: FeederJournal, folder: Path) -> None:
        self._etcd = etcd
        self._key = _FEEDERS + name.encode()
        self._name = name
        self._cluster_id = cluster_id
        self._journal = journal
        # A copied folder has another inode: the owner of the original may still be running.
        self._place = f"{socket.gethostname()}:{folder.resolve()}:{os.stat(folder).st_ino}"
        self._entry: FeederEntry | None = None

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
        self._claim_catalog()
        if known is None and journal.read_last_commit_ts():
            log.warning("feeder_registered_again", name=self._name, reason="its entry was not in PD's registry")
        starts = int(journal.read_fact(_STARTS) or 0) + 1
        # First the journal, then the registry: a crash in between leaves the journal ahead, which is safe.
        journal.set_facts({_STARTS: str(starts), _CLUSTER: str(self._cluster_id)})
        self._entry = FeederEntry(journal.id, starts, str(journal.read_last_commit_ts()), self._place, clean=False)
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
                raise self._build_fenced_error()
            return
        if not self._put(after, known):
            raise self._build_fenced_error()
        self._entry = after

    def _build_fenced_error(self) -> Fenced:
        return Fenced(
            "another feeder took this name: this one must not publish", where={"name": self._name},
            hint="two feeders run with one name, or this folder was copied; stop one of them",
        )  # fmt: skip

    def _claim_catalog(self) -> None:
        """Become the one whose numbers the tables of this PD have. Raises Permanent if another one is, or may be."""
        stored = self._etcd.get(CATALOG)
        owner = json.loads(stored.value) if stored is not None else {}
        if stored is None:
            self._refuse_others()
        elif owner["journal"] != self._journal.id:
            raise self._build_second_error(f"the feeder {owner['feeder']}")
        own = {"journal": self._journal.id, "feeder": self._name}
        if owner == own:
            return
        if stored is not None:
            self._check_copy(owner["feeder"])
        revision = stored.mod_revision if stored is not None else 0
        if not self._etcd.put_if(CATALOG, json.dumps(own).encode(), mod_revision=revision):
            raise self._build_second_error("another feeder, which started just now")

    def _check_copy(self, former: str) -> None:
        """Raises Permanent if this folder, which was the feeder `former`, may be a copy of one that still runs."""
        stored = self._etcd.get(_FEEDERS + former.encode())
        entry = FeederEntry.from_json(stored.value) if stored is not None else None
        if entry is not None and not entry.clean and entry.place != self._place:
            raise Permanent(
                f"this folder is a copy of that of the feeder {former}, which may still run",
                where={"name": self._name, "its_place": entry.place},
                hint=f"stop {former}, and use its own folder",
            )

    def _refuse_others(self) -> None:
        """Raises Permanent if a new feeder finds another one or a TiDB. One that ran before goes on: the other may be
        long gone."""
        if self._journal.read_fact(_STARTS):
            return
        feeders = [entry.key.removeprefix(_FEEDERS) for entry in self._etcd.read_prefix(_FEEDERS)[0]]
        if others := [name.decode() for name in feeders if name != self._name.encode()]:
            raise self._build_second_error(f"the feeder {others[0]}")
        if self._etcd.read_prefix(_TIDB)[0]:
            raise self._build_second_error("a TiDB cluster")

    def _build_second_error(self, owner: str) -> Permanent:
        return Permanent(
            f"the PD already belongs to {owner}: this feeder would give its tables the same ids",
            where={"name": self._name, "cluster": self._cluster_id}, hint=_ALONE_HINT,
        )  # fmt: skip

    def _check_cluster(self) -> None:
        known = self._journal.read_fact(_CLUSTER)
        if known and known != str(self._cluster_id):
            raise Permanent(
                "this folder belongs to a feeder of another cluster",
                where={"name": self._name, "its_cluster": known, "cluster": self._cluster_id}, hint="correct `pd-urls`",
            )  # fmt: skip

    def _check(self, known: FeederEntry) -> None:
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

    def _read(self) -> FeederEntry | None:
        stored = self._etcd.get(self._key)
        return FeederEntry.from_json(stored.value) if stored else None

    def _put(self, entry: FeederEntry, over: FeederEntry | None) -> bool:
        """Put `entry` in place of `over`; returns whether it is there now, also if only the answer was lost.

        An entry of the same start in the same place is this process's, whatever it says: the answer to an earlier
        renewal was lost, and the journal has moved on since.
        """
        stored = self._etcd.get(self._key)
        known = FeederEntry.from_json(stored.value) if stored else None
        if known == entry:
            return True
        revision = stored.mod_revision if stored else 0
        is_own = known is not None and known.owner == entry.owner
        return (known == over or is_own) and self._etcd.put_if(self._key, entry.to_json(), mod_revision=revision)
