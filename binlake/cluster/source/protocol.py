"""The interface between a source and the pipeline; any source that implements it can be replicated (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from binlake.cluster.source.status import Status

Job = Mapping[str, Any]
"""A DDL job as TiDB's JSON has it (tidb-binlog 1.13)."""


class JobHistory(Protocol):
    """Access to finished DDL jobs. Methods raise SourceUnavailable, WireError."""

    def fetch_page(self, below: int) -> list[dict[str, Any]]:
        """The newest jobs with id < `below` (0 = no limit), newest first; empty if there are none."""

    def fetch_by_id(self, ids: Collection[int]) -> dict[int, dict[str, Any]]:
        """The finished jobs among `ids`."""

    def fetch_running(self) -> list[dict[str, Any]] | None:
        """The unfinished jobs; None if unknown."""

    def close(self) -> None:
        """Close all connections."""


class Source(Protocol):
    """A source cluster."""

    def fetch_ts(self) -> int:
        """A fresh timestamp, above every commit_ts that exists so far. Raises SourceUnavailable."""

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        """The outcome of the transaction `start_ts` whose primary key is `key` (raw bytes, the prewrite_key).

        Raises SourceUnavailable. An answer without proof is Unknown, never RolledBack (hazards R-07).
        """

    def fetch_ddl_jobs(self, newer_than_job_id: int, started_by: int | None = None) -> Iterator[Job]:
        """Finished jobs with id > `newer_than_job_id`, newest first; with `started_by`, jobs with a higher start_ts are
        skipped, except for some. Raises SourceUnavailable, WireError."""

    def fetch_ddl_jobs_by_id(self, ids: Collection[int]) -> dict[int, Job]:
        """The finished jobs among `ids`; a missing one is unfinished or unknown."""
