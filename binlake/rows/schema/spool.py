"""Sort DDL jobs by the order of their effects, on disk, so that a long history needs no memory.

Rule: TiDB assigns schema versions in commit order, so a job was committed before every job with a greater version. A
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from binlake.errors import Transient
from binlake.rows.schema.job import DdlJob, read_job_version

_CACHE_KIB = 16 * 1024


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
