"""A table of a lake in an object store, as this process knows it: the newest version, and a copy of its log on a disk.

Rule: a commit is one put of the next file of the log, on the condition that there is none, as delta-rs commits; the
file is what Delta's protocol says. delta-rs itself asks the store six times for each commit (it lists the log before
and after, and reads twice what it wrote), and reads a checkpoint in eleven parts. So its questions about files go to a
copy of the log (the last checkpoint and the commits after it), which has each commit that this process has made or
found. The files of a log never change, so it is as good as the log up to its version; it is for this process, and
deleted at its end. delta-rs commits itself what needs more than adding and removing files.

Newer commits are looked for by getting the next file of the log. None is looked for while this process holds the lock
under which alone the table is written, and nobody else has held that since the last look.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import structlog
from deltalake import DeltaTable, Metadata, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import ProtocolVersions

from binlake.common.process import read_clock_s
from binlake.errors import Transient
from binlake.lake.lease import find_term, require_leases
from binlake.lake.logcopy import LogCopy, LogFiles, is_whole, list_log, name_commit
from binlake.lake.objects import create_object, find_object

log = structlog.get_logger(__name__)

CHECKPOINT_EVERY = 32
"""Commits to a table between two checkpoints (two requests), so that a new process reads fewer."""
_CLEAN_EVERY = 1024
"""The same between two looks for the expired part of the log: the store lists a thousand files in a request."""
_FRESH_S = 3600.0
"""After this long without a look, a newer commit may have been removed from the log."""
_GLANCED = 128
"""So many commits before the one that is asked for are listed with it: there is a checkpoint among them."""
_WRITER = 2
"""The newest writer version of Delta's protocol whose rules these commits keep."""
_OWN = "binlakeCommit"

Action = Mapping[str, Any]
"""A line of the log: the kind of an action, and its content."""


@dataclass
class _Moment:
    """What an answer has seen: tables that it has looked at, and logs that it has listed, with when it began to."""

    looked: set[str] = field(default_factory=set)
    listed: dict[str, tuple[LogFiles, tuple[float, object | None]]] = field(default_factory=dict)


_MOMENT: ContextVar[_Moment | None] = ContextVar("moment", default=None)


@contextmanager
def look_once() -> Iterator[None]:
    """In this block, look for newer commits of a table only the first time: for an answer, which is of one moment."""
    token = _MOMENT.set(_Moment())
    try:
        yield
    finally:
        _MOMENT.reset(token)


class StoreTable:
    """The table at `path`. Safe to share; one for a table in a process, so that each user knows the others' commits.

    `load` opens it by delta-rs. Nothing is asked before the first call.
    """

    def __init__(self, path: str, load: Callable[[str], DeltaTable]) -> None:
        self.path = self.table_uri = path
        self.others = 0
        """How many commits of others were found since it was opened here."""
        self._load = load
        self._copy: LogCopy | None = None
        self._writer: DeltaTable | None = None
        self._version = -1
        self._looked_s = 0.0
        self._term: object | None = None
        self._lock = threading.RLock()

    def version(self) -> int:
        """The newest version known."""
        with self._lock:
            if self._writer is not None:
                # delta-rs may have committed to it.
                self._version = max(self._version, self._writer.version())
            return self._version

    def files(self) -> DeltaTable:
        """The log at the newest version known, as a table whose data is not there: for files, columns and properties.

        Raises TableNotFoundError, BinlakeError.
        """
        with self._lock:
            copy = self._copy
            if copy is None or not copy.is_own or copy.is_long:
                copy = self._open_copy()
            return copy.follow(self.version())

    def metadata(self) -> Metadata:
        """The table's id, columns and properties."""
        return self.files().metadata()

    def schema(self) -> Schema:
        """The table's columns."""
        return self.files().schema()

    def protocol(self) -> ProtocolVersions:
        """The versions of Delta's protocol that readers and writers must know."""
        return self.files().protocol()

    def get_add_actions(self, flatten: bool = True) -> pa.Table:
        """The files, as delta-rs describes them."""
        return pa.table(self.files().get_add_actions(flatten=flatten))

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The last `limit` commits, newest first, as delta-rs tells them."""
        return list(self.open_fully().history(limit))

    def open_fully(self) -> DeltaTable:
        """The table at the newest version known or later, for what delta-rs does with its data.

        Raises TableNotFoundError, BinlakeError.
        """
        with self._lock:
            # delta-rs does not know of all commits that it makes, such as those of transactions and VACUUM.
            self._term = None
            if self._writer is None or self._writer.version() + CHECKPOINT_EVERY < self._version:
                # It reads a checkpoint in fewer requests than many commits.
                self._writer = self._load(self.path)
            elif self._writer.version() < self._version:
                self._writer.update_incremental()
            self.version()
            return self._writer

    def look(self) -> None:
        """Find the commits that others have made: a request for each, and one that finds none.

        Raises TableNotFoundError, BinlakeError.
        """
        moment = _MOMENT.get()
        with self._lock:
            if self._version < 0:
                self.files()
            elif (moment is None or self.path not in moment.looked) and self._may_have_newer():
                begun = self._begin_look()
                if begun[0] - self._looked_s > _FRESH_S:
                    self._open_again()
                while (text := find_object(self.path, name_commit(self.version() + 1))) is not None:
                    self._version += 1
                    self.others += 1
                    self._keep(text)
                self._looked_s, self._term = begun
        if moment is not None:
            moment.looked.add(self.path)
        require_leases()

    def list_for_answer(self, version: int) -> None:
        """In an answer (`look_once`), list the log near `version`, which may be the newest: one request instead of two
        when the table is opened. Raises BinlakeError."""
        if _MOMENT.get() is not None:
            self.is_last(version)

    def is_last(self, version: int) -> bool:
        """Whether `version` is surely the newest one, seen by one request; False if the table is opened already.

        An answer (`look_once`) that opens the table later need not list its log again. Raises BinlakeError.
        """
        with self._lock:
            if self._version >= 0:
                return False
        begun = self._begin_look()
        files = list_log(self.path, version - _GLANCED)
        moment = _MOMENT.get()
        if moment is not None and is_whole(files):
            moment.listed[self.path] = files, begun
        return max((at for at, kind in files.values() if kind == "json"), default=-1) == version

    def takes_commits(self) -> bool:
        """Whether the protocol of the table asks nothing of a writer but what `commit` does."""
        protocol = self.protocol()
        plain = protocol.min_writer_version <= _WRITER and not protocol.writer_features
        return plain and self.metadata().configuration.get("delta.appendOnly", "false") == "false"

    def commit(self, actions: Sequence[Action], about: Mapping[str, Any]) -> int:
        """Commit `actions` as the next version, whose number must be free; `about`: the commit's information.

        Returns the version.
        Raises CommitFailedError if it is taken: the caller may look and try again. Raises BinlakeError if it is unknown
        whether it was committed.
        """
        own = uuid.uuid4().hex
        body = format_commit(actions, {_OWN: own, **about})
        with self._lock:
            version = self.version() + 1
            if not self._put(version, body, own):
                self._term = None  # somebody writes without the lock: look next time
                raise CommitFailedError(f"version {version} of {self.path} was committed by another process")
            self._version = version
            self._keep(body)
            return version

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the newest version known, in two requests; without it, the log is read further back."""
        with self._lock:
            try:
                self.files()
                if self._copy is not None:
                    self._copy.write_checkpoint()
                if self._version % _CLEAN_EVERY == 0:
                    self.open_fully().cleanup_metadata()
            except (Transient, DeltaError) as error:
                # What was committed is durable.
                log.warning("checkpoint_not_written", table=self.path, error=str(error))

    def _put(self, version: int, body: bytes, own: str) -> bool:
        """Whether `body` is the commit of `version`; a put whose answer was lost is looked at."""
        name, lost = name_commit(version), None
        try:
            if create_object(self.path, name, body):
                return True
        except Transient as error:
            lost = error
        # A put is repeated if its answer was lost, and the second one may find the first.
        found = find_object(self.path, name)
        if found is None and lost is not None:
            raise lost
        return found is not None and own.encode() in found.partition(b"\n")[0]

    def _may_have_newer(self) -> bool:
        term = find_term(self.path)
        return term is None or term is not self._term

    def _begin_look(self) -> tuple[float, object | None]:
        """What to remember when the look has ended."""
        return read_clock_s(), find_term(self.path)

    def _open_copy(self) -> LogCopy:
        moment = _MOMENT.get()
        listed = None if moment is None else moment.listed.pop(self.path, None)
        files, begun = (None, self._begin_look()) if listed is None else listed
        self._copy = LogCopy.fetch(self.path, files)
        self._version = max(self.version(), self._copy.version)
        self._looked_s, self._term = begun
        return self._copy

    def _open_again(self) -> None:
        if self._copy is not None:
            self._open_copy()
        elif self._writer is not None:
            self._writer.update_incremental()

    def _keep(self, text: bytes) -> None:
        if self._copy is not None:
            self._copy.keep(self._version, text)


def format_commit(actions: Sequence[Action], about: Mapping[str, Any]) -> bytes:
    """The file of the log that commits `actions`, now, with `about` as the commit's information."""
    info = {"timestamp": int(time.time() * 1000), "engineInfo": "binlake", **about}
    return "\n".join(json.dumps(line, separators=(",", ":")) for line in [{"commitInfo": info}, *actions]).encode()


def build_add(path: str, values: Mapping[str, str], size: int, stats: str, *, is_change: bool = True) -> Action:
    """The action that adds the file `path`, with the statistics `stats` (Delta's JSON)."""
    about = {"path": path, "partitionValues": dict(values), "size": size, "modificationTime": int(time.time() * 1000)}
    return {"add": {**about, "dataChange": is_change, "stats": stats}}


def build_remove(path: str, values: Mapping[str, str], size: int, *, is_change: bool = True) -> Action:
    """The action that removes the file `path`."""
    about = {"path": path, "deletionTimestamp": int(time.time() * 1000), "dataChange": is_change}
    return {"remove": {**about, "extendedFileMetadata": True, "partitionValues": dict(values), "size": size}}
