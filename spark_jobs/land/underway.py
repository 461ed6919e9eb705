"""DDL that is running on the source: which rows may have seen it, although it is in no history yet (invariant 5).

Rule: a window ends before the first step of a running DDL that rows can have seen. The source is asked after the pull
and before the history is read. So a step that a row of the window saw was made before the question, and a job that had
ended by then is in the history, where `binlake.rows.schema.window` places it. Binlake need not wait for anything.

Through the status port (`ByVersions`) each schema version is a step with a table and a commit_ts. It belongs to the
first job of its table that ends with that version or a later one. If there is no such job, the DDL is running, and rows
have seen it if the public part of the table's definition differs from that in the history. Through SQL (`ByJobs`) the
source lists the running jobs in a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from binlake.cluster.source import DdlStep, TidbSource
from binlake.rows.schema import DdlJob, SchemaState
from binlake.rows.schema.window import compute_running_ts, logs_twice, may_run_ahead, select_visible_parts


@dataclass(frozen=True)
class EndedDdl:
    """The ended DDL among that begun by hi: the schema after it, and the last version of each table."""

    schema: SchemaState
    versions: Mapping[int, int]


class Underway(Protocol):
    """The DDL running on the source, asked before its history is read."""

    def is_idle(self, version: int) -> bool:
        """True when `version` is the newest schema version: no DDL has run since."""

    def find_first_seen(self, ended: EndedDdl, lo: int, hi: int) -> int | None:
        """The smallest commit_ts of (lo, hi] from which on rows may have seen a DDL that is not in the history."""


def ask_underway(source: TidbSource, known: int, hi: int) -> Underway | None:
    """Ask `source`, whose schema is known up to version `known`, for the steps up to `hi`.

    None for a source without schema versions. Raises SourceUnavailable, WireError, ConfigError.
    """
    jobs = source.fetch_running_jobs()
    if jobs is not None:
        return ByJobs(jobs)
    newest = source.fetch_schema_version()
    return None if newest is None else ByVersions(source, newest, _fetch_steps(source, known, newest, hi))


def _fetch_steps(source: TidbSource, known: int, newest: int, hi: int) -> list[DdlStep]:
    steps = []
    for version in range(known + 1, newest + 1):
        step = source.fetch_schema_step(version)
        if step is not None and step.commit_ts > hi:
            break
        if step is not None:
            steps.append(step)
    return steps


@dataclass(frozen=True)
class ByJobs:
    """Derived from the jobs (JSON) that have not ended."""

    jobs: Sequence[Mapping[str, Any]]

    def is_idle(self, version: int) -> bool:
        """As Underway. Always False: jobs that ended recently are not listed here."""
        del version
        return False

    def find_first_seen(self, ended: EndedDdl, lo: int, hi: int) -> int | None:
        """As Underway."""
        starts = (compute_running_ts(job, ended.schema.find_table(int(job["table_id"]))) for job in self.jobs)
        positions = [max(start, lo + 1) for start in starts if start is not None]
        return min((position for position in positions if position <= hi), default=None)


@dataclass(frozen=True)
class ByVersions:
    """Derived from schema versions: the `newest` one, and the `steps` above the known version made by hi."""

    source: TidbSource
    newest: int
    steps: Sequence[DdlStep]

    def is_idle(self, version: int) -> bool:
        """As Underway."""
        return self.newest <= version

    def find_first_seen(self, ended: EndedDdl, lo: int, hi: int) -> int | None:
        """As Underway: the first step of each running DDL whose table differs, as rows see it, from the history.

        It is unknown which of its steps rows have seen. So a long data copy, even if invisible so far, counts from lo
        on.
        """
        running: dict[int, list[DdlStep]] = {}
        for step in self.steps:
            if not step.action or (may_run_ahead(step.action) and step.version > ended.versions.get(step.table_id, 0)):
                running.setdefault(step.table_id, []).append(step)
        seen = [steps for table_id, steps in running.items() if self._may_be_seen(table_id, steps, ended, hi)]
        return min((max(steps[0].commit_ts, lo + 1) for steps in seen), default=None)

    def _may_be_seen(self, table_id: int, steps: Sequence[DdlStep], ended: EndedDdl, hi: int) -> bool:
        if not all(step.action for step in steps):
            return True
        known = ended.schema.find_table(table_id)
        if any(logs_twice(step.action, known) for step in steps):
            return not self._has_job_ended_since(table_id, steps[-1].version, hi)
        shown = self.source.fetch_shown_table(table_id)
        if shown.version >= steps[-1].version and select_visible_parts(shown.info) == select_visible_parts(
            known.raw if known else None
        ):
            return False
        return not self._has_job_ended_since(table_id, steps[-1].version, hi)

    def _has_job_ended_since(self, table_id: int, version: int, hi: int) -> bool:
        """True when a job of the table that began above `hi` has ended, so the job that made `version` ended before it.

        TiDB runs the jobs of one table one after the other; a cancelled job may have left no version.
        """
        for job in map(DdlJob.from_dict, self.source.fetch_ddl_jobs(0)):
            if job.start_ts <= hi:
                return False
            if job.table_id == table_id and job.schema_version > version:
                return True
        return False
