"""The schema at one position of the log: a fold of DDL jobs in SchemaVersion order that contains live objects only.

Rules: tidb-binlog 5.4 and 1.14; MISSION S0-60, S0-61, S0-64. `SchemaState` values never change: `apply` and `fold`
return new ones, and `find_touched` compares two. `binlake.rows.schema.change` makes the changes. `JobSpool` sorts the
jobs of a long history on disk, by the order of their effects.

TiDB assigns schema versions in commit order, so a job was committed before every job with a greater version. A
FinishedTS is always slightly later than the commit (tidb-binlog 1.14, 5.4), and two jobs may finish in the reverse
order. Therefore the least FinishedTS among a job and all jobs of greater versions is an upper bound of its commit. With
these bounds, ts and versions ascend together, and the schema "as of ts" is a prefix of the jobs.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from binlake.errors import SchemaError, Transient
from binlake.rows.schema.change import apply_job, note_rolled_back
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.info import DbInfo, TableDef
from binlake.rows.schema.job import DdlJob, SourceSession, read_job_version
from binlake.rows.schema.tables import (
    SchemaTables,
    SnapshotIndex,
    StoredName,
    StoredSnapshotReader,
    StoredTables,
    dump_names,
    dump_row,
    load_row,
    parse_table,
)

RowKind = Literal["state", "schema", "table", "gone", "alias", "dropped", "names"]
_CACHE_KIB = 16 * 1024


@dataclass(frozen=True)
class SchemaState:
    """Databases and tables after the DDL of `version`; `commit_ts` is that DDL's, 0 if unknown."""

    version: int = 0
    commit_ts: int = 0
    _tables: SchemaTables = field(default_factory=SchemaTables.build_preset, repr=False)

    def find_table(self, table_id: int) -> TableDef | None:
        """The definition of a logical table id, or None. An id that PARTITION BY replaced leads to its successor."""
        return self._tables.find_table(table_id)

    def get_table(self, table_id: int) -> TableDef | None:
        """The definition of exactly this id, or None."""
        return self._tables.get(table_id)

    def is_gone(self, table_id: int) -> bool:
        """True if the table was dropped or truncated recently: its late changes are ignored (tidb-binlog 1.14)."""
        return table_id in self._tables.gone

    def find(self, db: str, table: str) -> TableDef | None:
        """The table, view or sequence of that name (case-insensitive), or None."""
        return self._tables.find(db, table)

    def find_database(self, name: str) -> DbInfo | None:
        """The database of that name (case-insensitive), or None."""
        return next((d for d in self._tables.databases.values() if fold_name(d.name) == fold_name(name)), None)

    def list_databases(self) -> list[DbInfo]:
        """All databases by id."""
        return [self._tables.databases[key] for key in sorted(self._tables.databases)]

    def list_tables(self) -> list[TableDef]:
        """All tables, views and sequences by id."""
        found = map(self._tables.get, self._tables.list_ids())
        return [table for table in found if table is not None]

    def list_names(self) -> list[StoredName]:
        """(id, id of the database, name) of all tables, views and sequences, by id; reads no definitions."""
        return self._tables.list_names()

    def list_touched(self, before: SchemaState) -> list[int]:
        """The ids of the tables that may have other definitions than in `before`, sorted; few if this follows it."""
        return sorted(self._tables.list_touched(before._tables))

    @property
    def objects(self) -> int:
        """Number of databases, tables, views and sequences; the size of a snapshot depends on it."""
        return len(self._tables.databases) + len(self._tables)

    def apply(self, job: DdlJob, commit_ts: int = 0) -> SchemaState:
        """The schema after `job`; the same schema if the job changed nothing or is already included.

        Raises SchemaError if the job needs a definition that it does not contain.
        """
        return self.fold([(commit_ts, job)])

    def fold(self, jobs: Iterable[tuple[int, DdlJob]]) -> SchemaState:
        """The schema after (commit_ts, job) pairs in ascending schema version, read as a stream.

        Memory grows with the live objects, not with the jobs. Jobs that did not take effect, or whose version is not
        above the state's, are skipped. Raises SchemaError for jobs that cannot be applied.
        """
        tables, version, last = self._tables.copy(), self.version, self.commit_ts
        for commit_ts, job in jobs:
            if job.schema_version <= version:
                continue
            if not job.took_effect:
                note_rolled_back(tables, job)
                continue
            if job.is_supported:
                apply_job(tables, job, commit_ts)
            version, last = job.schema_version, commit_ts
        return SchemaState(version, last, tables)

    def follow(self, job: DdlJob, commit_ts: int, base: int) -> SchemaState:
        """The schema after a job whose version is above `base` and which comes after jobs of later versions.

        Those later jobs must be of other tables. Raises SchemaError like `fold`.
        """
        if job.schema_version <= base:
            return self
        after = replace(self, version=min(self.version, max(job.schema_version - 1, 0))).apply(job, commit_ts)
        return replace(after, version=max(self.version, after.version), commit_ts=max(self.commit_ts, after.commit_ts))

    def forget_tables(self) -> SchemaState:
        """The same schema without the definitions that were read from its snapshot: they are read again when needed."""
        tables = self._tables.copy()
        tables.stored = StoredTables(tables.stored.index)
        return replace(self, _tables=tables)

    def to_rows(self) -> Iterator[tuple[RowKind, int, str]]:
        """(kind, object id, JSON text) rows, from which `from_rows` restores this state.

        The tables come last, by id. The text of one that has not changed since the snapshot is that of the snapshot.
        """
        yield "state", 0, dump_row({"version": self.version, "commit_ts": str(self.commit_ts)})
        for db in self.list_databases():
            yield "schema", db.id, dump_row(db.raw)
        for table_id, version in self._tables.gone.items():
            yield "gone", table_id, dump_row({"version": version})
        for old, new in self._tables.aliases.items():
            yield "alias", old, dump_row({"id": new})
        for db_id, infos in self._tables.dropped.items():
            yield "dropped", db_id, dump_row({"infos": infos})
        for number, text in enumerate(dump_names(self._tables.list_names())):
            yield "names", number, text
        for table_id in self._tables.list_ids():
            yield "table", table_id, self._tables.dump_table(table_id)

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[str, int, str]], reader: StoredSnapshotReader | None = None) -> SchemaState:
        """Restore the state from rows in any order; raises SchemaError for an unknown kind or an unreadable row.

        With `reader` the rows of the kinds `names` and `table` are not among them: it reads those that are needed.
        """
        parsed: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for kind, object_id, text in rows:
            parsed.setdefault(kind, []).append((object_id, load_row(kind, object_id, text)))
        return _assemble(parsed, reader)


def _assemble(
    parsed: Mapping[str, list[tuple[int, dict[str, Any]]]], reader: StoredSnapshotReader | None
) -> SchemaState:
    unknown = set(parsed) - {"state", "schema", "table", "gone", "alias", "dropped", "names"}
    if unknown or len(parsed.get("state", ())) != 1:
        raise SchemaError("a schema snapshot is not complete", where={"kinds": sorted(parsed)})
    databases = {raw["id"]: DbInfo.from_json(raw) for _, raw in parsed.get("schema", ())}
    tables = SchemaTables(databases)
    if reader is not None:
        tables.stored = StoredTables(SnapshotIndex(reader, dict(databases)))
    for _, raw in parsed.get("table", ()):
        tables.add(parse_table(raw, databases))
    # JSON rows come in any order; the versions say which tombstone is older.
    gone = sorted((raw["version"], key) for key, raw in parsed.get("gone", ()))
    tables.gone.update((key, version) for version, key in gone)
    tables.aliases.update((key, raw["id"]) for key, raw in parsed.get("alias", ()))
    tables.dropped.update((key, tuple(raw["infos"])) for key, raw in parsed.get("dropped", ()))
    head = parsed["state"][0][1]
    return SchemaState(int(head["version"]), int(head["commit_ts"]), tables)


@dataclass(frozen=True)
class DdlSide:
    """One side of a DDL: the touched objects that existed before or after it; `session`: the source's session."""

    databases: tuple[DbInfo, ...]
    tables: tuple[TableDef, ...]
    session: SourceSession = field(default_factory=SourceSession)

    def to_json(self) -> str:
        """`{"databases": [raw DBInfo…], "tables": [{"db_id": …, "db": name, "info": raw TableInfo}…]}`.

        If something about the session is known, also `"session": {"zone": …, "day": …}`.
        """
        tables = [{"db_id": table.db_id, "db": table.db, "info": table.raw} for table in self.tables]
        value: dict[str, object] = {"databases": [db.raw for db in self.databases], "tables": tables}
        if session := self.session.to_dict():
            value["session"] = session
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> DdlSide:
        """Parse what `to_json` wrote. Raises SchemaError."""
        try:
            raw = json.loads(text)
            databases = tuple(DbInfo.from_json(db) for db in raw["databases"])
            tables = tuple(
                TableDef.from_json(t["info"], DbInfo(t["db_id"], t["db"], "", "", {})) for t in raw["tables"]
            )
            session = SourceSession.from_dict(raw.get("session") or {})
        except (ValueError, KeyError, TypeError) as error:
            raise SchemaError(f"definitions of a DDL cannot be read: {error!r}") from error
        return cls(databases, tables, session)


def find_touched(before: SchemaState, after: SchemaState) -> tuple[DdlSide, DdlSide]:
    """(before, after): the definitions of every database and table that differs; tables are compared by object
    identity."""
    touched = after.list_touched(before)
    return _build_side(before, after, touched), _build_side(after, before, touched)


def _build_side(mine: SchemaState, other: SchemaState, touched: Sequence[int]) -> DdlSide:
    others = {db.id: db for db in other.list_databases()}
    databases = tuple(db for db in mine.list_databases() if db != others.get(db.id))
    both = ((mine.get_table(key), other.get_table(key)) for key in touched)
    return DdlSide(databases, tuple(own for own, else_ in both if own is not None and own is not else_))


class JobSpool:
    """A temporary file of jobs in `folder` (default: the system's); use as a context manager.

    Memory: 16 MiB, plus 8 bytes per job that took effect. Disk: the jobs' JSON, compressed. Raises Transient if the
    disk is full.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="binlake-jobs-", dir=folder)
        # The file is temporary, so it needs neither a journal nor fsync.
        self._db = sqlite3.connect(str(Path(self._folder.name) / "jobs.db"), isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}", "temp_store = FILE"):
            self._db.execute(f"PRAGMA {setting}")
        self._db.execute("CREATE TABLE job (id INTEGER PRIMARY KEY, version INTEGER, finished INTEGER, text BLOB)")

    def __enter__(self) -> JobSpool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._db.close()
        self._folder.cleanup()

    def fill(self, jobs: Iterable[Mapping[str, Any]]) -> int:
        """Add the jobs that took effect and return how many there are; a repeated job (a page read twice) counts
        once."""
        try:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR IGNORE INTO job VALUES (?, ?, ?, ?)", _encode_records(jobs))
            self._db.execute("COMMIT")
            self._db.execute("CREATE INDEX IF NOT EXISTS by_version ON job (version, finished)")
        except sqlite3.OperationalError as error:
            raise Transient(
                f"the DDL history cannot be sorted: {error}",
                where={"folder": self._folder.name},
                hint="free disk space below TMPDIR, or point TMPDIR elsewhere",
            ) from error
        return int(self._db.execute("SELECT COUNT(*) FROM job").fetchone()[0])

    def iterate_jobs(self) -> Iterator[tuple[int, DdlJob]]:
        """(ts, job) by schema version; `ts` is an upper bound of the job's commit and never decreases."""
        bounds = self._compute_bounds()
        for text in self._db.execute("SELECT text FROM job ORDER BY version, finished"):
            yield bounds.pop(), DdlJob.parse(zlib.decompress(text[0]).decode())

    def _compute_bounds(self) -> array[int]:
        """The upper bound of each job's commit, greatest version first."""
        bounds, least = array("q"), (1 << 63) - 1
        for (finished,) in self._db.execute("SELECT finished FROM job ORDER BY version DESC, finished DESC"):
            least = min(least, finished)
            bounds.append(least)
        return bounds


def _encode_records(jobs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, int, bytes]]:
    for raw in jobs:
        # Only the fields that decide the order are read here: the rest of a long history is parsed once, in the fold.
        order = read_job_version(raw)
        if order.version:
            text = json.dumps(raw, ensure_ascii=False, separators=(",", ":"))
            yield *order, zlib.compress(text.encode(), 1)
