"""The feeder's journal: the outcome of each transaction it gave to the pumps, and where reading each source resumes.

One rule makes publishing exactly once: the outcome of a batch and the position after it are one durable step, taken
after every prewrite is acknowledged and before any commit is sent. After a crash, a batch in the journal is committed
and its commits are sent again; any other batch is rolled back, and its source is read again from before it. Chunks of
a full load that cannot be committed yet stay undecided across restarts, until one such step commits all of them.

A batch has consecutive start_ts and consecutive commit_ts, so about fifty bytes hold the outcome of thousands of
transactions: they are kept for `keep-days`.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from binlake.common.localfiles import FileLock
from binlake.errors import Permanent, SharedFailure
from binlake.mysqlbinlog.model import BinlogPosition
from binlake.pump_service.feeder.journalfiles import TABLES, OpenBatches, delete_load, put_load_tables

Json = dict[str, Any]

_FORMAT = "1"
_MAX_TS = 1 << 62  # above all timestamps and ids
_FORMAT_FACT, _ID, _FORGOTTEN, _REMOVED = "format", "id", "forgotten_ts", "commit_ts of removed sources"


@dataclass(frozen=True, slots=True)
class Batch:
    """Transactions that were prewritten together: start_ts from `first_start` on, in the source's order.

    `keys`: the tail of each prewrite_key; `pumps`: the node id that acknowledged each prewrite; `ddls`: statement,
    job id and schema state, by start_ts, of the transactions that change the schema.
    """

    first_start: int
    keys: tuple[str, ...]
    pumps: tuple[str, ...]
    ddls: Mapping[int, tuple[str, int, int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of transactions."""
        return len(self.keys)

    @property
    def start_ts(self) -> range:
        """The start_ts of each transaction."""
        return range(self.first_start, self.first_start + self.count)

    def to_json(self) -> str:
        """What is needed to resend the commits."""
        return json.dumps([self.keys, self.pumps, list(self.ddls.items())])

    @classmethod
    def from_json(cls, first_start: int, text: str) -> Batch:
        """Parse the result of `to_json`."""
        keys, pumps, ddls = json.loads(text)
        return cls(
            first_start,
            tuple(keys),
            tuple(pumps),
            {int(start): (ddl[0], int(ddl[1]), int(ddl[2])) for start, ddl in ddls},
        )


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where reading a source resumes. `last_id`, `time_ms`, `commit_ts`: of its last transaction; "", 0, 0 = none."""

    position: BinlogPosition
    last_id: str = ""
    time_ms: int = 0
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """A prewritten chunk of a full load: `table` is (source, db, table), `body` the state of the table's load that is
    stored with it; `snapshot`: the number of the snapshot in which it was read."""

    table: tuple[str, str, str]
    body: str
    snapshot: int
    batches: Sequence[Batch]


class FeederJournal:
    """The journal in `folder`, which this process locks. Thread-safe.

    Raises Permanent if another process holds the folder or its format is unknown; SharedFailure when the disk fails:
    then it is unknown whether the step is durable until a process opens the journal again.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder_lock = FileLock(folder / ".lock")
        if not self._folder_lock.take():
            raise Permanent(
                "another process holds the feeder's folder",
                where={"data-dir": folder},
                hint="run one feeder per folder",
            )
        self._path = folder / "journal.db"
        self._lock = threading.Lock()
        self._reader_lock = threading.Lock()
        self._stored_batches: list[int] = []
        try:
            self._open = OpenBatches(folder / "open")
            self._db = self._connect()
            self._reader = self._connect()
            self._prepare()
        except BaseException:
            self._folder_lock.release()
            raise

    @property
    def id(self) -> str:
        """Generated with the folder; never changes."""
        return self.read_fact(_ID)

    def read_fact(self, name: str) -> str:
        """A small named value; "" = never set."""
        rows = self._query("SELECT value FROM fact WHERE name = ?", name)
        return str(rows[0][0]) if rows else ""

    def read_facts_with_prefix(self, prefix: str) -> dict[str, str]:
        """The facts whose names begin with `prefix`, by the rest of their names."""
        rows = self._query("SELECT name, value FROM fact WHERE substr(name, 1, ?) = ? ORDER BY 1", len(prefix), prefix)
        return {name[len(prefix) :]: value for name, value in rows}

    def set_facts(self, facts: Mapping[str, str]) -> None:
        """Set facts, durably."""
        with self._run_transaction() as db:
            db.executemany("REPLACE INTO fact VALUES (?, ?)", facts.items())

    # -- transactions

    def mark_open(self, first_start: int, count: int) -> None:
        """Call before the first of these prewrites is sent: they count as undecided while this process runs."""
        try:
            self._open.add(first_start, count)
        except OSError as error:
            raise self._build_failure(error) from error

    def list_previous_open(self) -> list[range]:
        """The start_ts that an earlier process prewrote and did not commit, as far as known."""
        ranges = [range(first, first + count) for first, count in self._open.from_previous]
        return [batch for batch in ranges if self.find_outcome(batch[0]) == self.find_outcome(batch[-1]) == 0]

    def forget_previous_open(self) -> None:
        """Call once the pumps have been sent their rollbacks."""
        self._open.forget_previous()

    def abandon(self, first_start: int) -> None:
        """The batch that begins at `first_start` will not be committed."""
        self._open.remove(first_start)

    def commit(
        self,
        batches: Sequence[tuple[Batch, int]],
        positions: Mapping[str, ReadPosition],
        *,
        jobs: Iterable[Json] = (),
        facts: Mapping[str, str] | None = None,
        loaded: str = "",
        chunks: Sequence[LoadedChunk] = (),
    ) -> None:
        """Durable when it returns: each batch is committed from its first commit_ts on; see the module's docstring.

        `loaded`: the source whose full load has nothing open any more: what is recorded of it is deleted. `chunks`:
        what is then recorded, without batches, of chunks that this commits.
        """
        with self._run_transaction() as db:
            self._note_stored(db)
            db.executemany(
                "INSERT INTO batch VALUES (?, ?, ?, ?)",
                [(batch.first_start, batch.count, first_commit, batch.to_json()) for batch, first_commit in batches],
            )
            db.executemany("INSERT INTO job VALUES (?, ?)", [(job["id"], json.dumps(job)) for job in jobs])
            self._put_positions(db, positions)
            db.executemany("REPLACE INTO fact VALUES (?, ?)", (facts or {}).items())
            if loaded:
                delete_load(db, loaded)
            put_load_tables(db, [(chunk.table, chunk.body) for chunk in chunks])
        for batch, _ in batches:
            self._open.remove(batch.first_start)

    def set_position(self, source: str, position: ReadPosition) -> None:
        """Reading the source resumes at `position`; nothing before it has to reach the pumps."""
        with self._run_transaction() as db:
            self._note_stored(db)
            self._put_positions(db, {source: position})

    def mark_stored(self, first_start: int) -> None:
        """Every commit of this batch is on its pump and need not be resent. Durable with the next step."""
        self._stored_batches.append(first_start)

    def read_unsent(self) -> Iterator[tuple[Batch, int]]:
        """Batches whose commits may not have reached their pumps, with their first commit_ts, in order of start_ts."""
        query = "SELECT first_start, first_commit, unsent FROM batch WHERE unsent IS NOT NULL ORDER BY first_start"
        for first_start, first_commit, text in self._query(query):
            yield Batch.from_json(first_start, text), first_commit

    def find_outcome(self, start_ts: int) -> int | None:
        """The commit_ts of a transaction of this feeder; 0 = rolled back, -1 = undecided, None = no longer known."""
        if start_ts >= _MAX_TS:
            return None
        if self._open.has(start_ts):
            return -1
        query = "SELECT first_start, count, first_commit FROM batch WHERE first_start <= ? ORDER BY 1 DESC LIMIT 1"
        for first_start, count, first_commit in self._query(query, start_ts):
            if start_ts < first_start + count:
                return int(first_commit) + start_ts - int(first_start)
        return 0 if start_ts > int(self.read_fact(_FORGOTTEN) or 0) else None

    def forget_outcomes(self, before_ts: int) -> int:
        """Delete outcomes of transactions that began before `before_ts` and are on their pumps; how many batches."""
        with self._run_transaction() as db:
            self._note_stored(db)
            oldest = [
                first
                for table in ("batch WHERE unsent IS NOT NULL", "load_batch")
                for (first,) in db.execute(f"SELECT min(first_start) FROM {table}")
                if first is not None
            ]
            line = min([before_ts, *oldest])
            known = int(self.read_fact(_FORGOTTEN) or 0)
            if line <= known:
                return 0
            dropped = db.execute("DELETE FROM batch WHERE first_start < ?", (line,)).rowcount
            db.execute("REPLACE INTO fact VALUES (?, ?)", (_FORGOTTEN, str(line)))
            return dropped

    # -- full loads: chunks that are prewritten and undecided, until `commit` or `drop_chunks`

    def store_chunks(self, chunks: Sequence[LoadedChunk]) -> None:
        """Durable when it returns: the prewrites of `chunks` stay open after this process ends."""
        with self._run_transaction() as db:
            put_load_tables(db, [(chunk.table, chunk.body) for chunk in chunks])
            for chunk in chunks:
                db.executemany(
                    "INSERT INTO load_batch VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [
                        (part.first_start, *chunk.table, chunk.snapshot, part.count, part.to_json())
                        for part in chunk.batches
                    ],
                )

    def read_load_tables(self, source: str) -> dict[tuple[str, str], str]:
        """The stored state of each table of a source's load, by (db, table)."""
        rows = self._query("SELECT db, name, body FROM load_table WHERE source = ?", source)
        return {(db, name): body for db, name, body in rows}

    def read_load_batches(self, source: str) -> Iterator[tuple[int, Batch]]:
        """(snapshot, batch) of the stored chunks, in order of snapshot and start_ts."""
        query = "SELECT snapshot, first_start, body FROM load_batch WHERE source = ? ORDER BY snapshot, first_start"
        for snapshot, first_start, body in self._query(query, source):
            yield snapshot, Batch.from_json(first_start, body)

    def drop_chunks(
        self, source: str, tables: Iterable[tuple[str, str]] | None = None, facts: Mapping[str, str] | None = None
    ) -> None:
        """Roll back the chunks of `tables` (None: of all) and delete them; `facts` are set in the same step."""
        names = list(self.read_load_tables(source)) if tables is None else list(tables)
        dropped: list[int] = []
        with self._run_transaction() as db:
            for name in names:
                query = "SELECT first_start FROM load_batch WHERE source = ? AND db = ? AND name = ?"
                dropped += [first for (first,) in db.execute(query, (source, *name))]
                for table in ("load_batch", "load_table"):
                    db.execute(f"DELETE FROM {table} WHERE source = ? AND db = ? AND name = ?", (source, *name))
            db.executemany("REPLACE INTO fact VALUES (?, ?)", (facts or {}).items())
        for first in dropped:
            self._open.remove(first)

    def roll_back_load(self, source: str, facts: Mapping[str, str]) -> int:
        """Roll back the load of `source`, which will not be continued, and delete its position, as if it had never
        begun; `facts` are set in the same durable step. Returns how many transactions were open: they are now in
        `list_previous_open`."""
        with self._run_transaction() as db:
            query = "SELECT first_start FROM load_batch WHERE source = ?"
            ended = [first for (first,) in db.execute(query, (source,))]
            # The registry recognises the newest folder by this last commit_ts.
            last = db.execute("SELECT max(commit_ts) FROM place WHERE source = ?", (source,)).fetchone()[0] or 0
            removed = str(max(last, int(self.read_fact(_REMOVED) or 0)))
            delete_load(db, source)
            db.execute("DELETE FROM place WHERE source = ?", (source,))
            db.executemany("REPLACE INTO fact VALUES (?, ?)", [*facts.items(), (_REMOVED, removed)])
        return self._open.disown(ended)

    # -- positions and jobs

    def read_positions(self) -> dict[str, ReadPosition]:
        """Where reading each source resumes, by its name."""
        rows = self._query("SELECT source, file, offset, gtids, last_id, time_ms, commit_ts FROM place ORDER BY 1")
        return {row[0]: ReadPosition(BinlogPosition(*row[1:4]), *row[4:]) for row in rows}

    def read_last_commit_ts(self) -> int:
        """The greatest commit_ts of all sources, removed ones too; 0 = none yet."""
        return max((int(self.read_fact(_REMOVED) or 0), *(read.commit_ts for read in self.read_positions().values())))

    def read_jobs(self, below: int = 0, limit: int = 0) -> list[Json]:
        """DDL jobs with id < `below` (0 = all), newest first, at most `limit` (0 = all)."""
        query = "SELECT body FROM job WHERE id < ? ORDER BY id DESC LIMIT ?"
        return [json.loads(body) for (body,) in self._query(query, below or _MAX_TS, limit or -1)]

    def close(self) -> None:
        """Record the commits known to be stored, and release the folder."""
        with self._run_transaction() as db:
            self._note_stored(db)
        with self._lock, self._reader_lock:
            self._db.close()
            self._reader.close()
            self._open.close()
        self._folder_lock.release()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        return db

    def _prepare(self) -> None:
        with self._run_transaction() as db:
            for statement in TABLES.split(";"):
                db.execute(statement)
            for name, value in ((_FORMAT_FACT, _FORMAT), (_ID, str(uuid.uuid4()))):
                db.execute("INSERT OR IGNORE INTO fact VALUES (?, ?)", (name, value))
        for first_start, count in self._query("SELECT first_start, count FROM load_batch"):
            self._open.add(first_start, count)
        if self.read_fact(_FORMAT_FACT) != _FORMAT:
            where = {"file": self._path, "format": self.read_fact(_FORMAT_FACT), "known": _FORMAT}
            raise Permanent(
                "the journal was written by another version", where=where, hint="run the version that wrote it"
            )

    def _put_positions(self, db: sqlite3.Connection, positions: Mapping[str, ReadPosition]) -> None:
        db.executemany(
            "REPLACE INTO place VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (source, at.file, at.offset, at.gtids, read.last_id, read.time_ms, read.commit_ts)
                for source, read in positions.items()
                for at in (read.position,)
            ],
        )

    def _note_stored(self, db: sqlite3.Connection) -> None:
        stored, self._stored_batches = self._stored_batches, []
        query = "UPDATE batch SET unsent = NULL WHERE first_start = ?"
        db.executemany(query, [(first,) for first in stored])

    def _query(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._reader_lock:
            try:
                return self._reader.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self._build_failure(error) from error

    @contextmanager
    def _run_transaction(self) -> Iterator[sqlite3.Connection]:
        """One durable step: all or nothing."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._build_failure(error) from error

    def _build_failure(self, error: sqlite3.Error | OSError) -> SharedFailure:
        return SharedFailure(
            f"the feeder's journal fails: {error}", where={"file": self._path}, hint="is the disk full, or read-only?"
        )
