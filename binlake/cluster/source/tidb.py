"""TiDB as a source: PD for the clock, the status port for transactions and DDL jobs (tidb-binlog 10.3, 10.5).

The DDL history is read page by page, newest first, and is never in memory as a whole (invariant 5).

How far back to read: a job gets its id when the DDL is submitted, but appears in the history only when it has finished.
So jobs that run in parallel may overtake it, and an id below the newest known one may still appear; nor is the order of
ids that of schema versions. A reader passes the lowest id that may still be running, or reads on until it has seen
many jobs that it knows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import httpx

from binlake.cluster.source.ddlhistory import (
    VERSION_KEY,
    DdlStep,
    ShownTable,
    encode_step_key,
    parse_newest_version,
    parse_shown_table,
    parse_step,
)
from binlake.cluster.source.protocol import JobHistory, Status, Unknown, read_status
from binlake.errors import SourceUnavailable, WireError
from binlake.rpc import Tls
from binlake.tso import Clock

SPARE = 256
"""Ids read beyond a start: an id is assigned shortly before the job's start_ts, so neighbours may be reversed."""

PAGE = 64
"""Jobs per request: TiDB allows up to 1024, and the job of a wide table has some 100 KB."""

_MISSING = (400, 404)
"""HTTP codes for a page that a status port does not have."""


class StatusPort:
    """GET from the first of `urls` (a list, or a comma list) that answers. `tls`: for https://. Thread-safe."""

    def __init__(self, urls: str | Sequence[str], timeout_s: float = 10.0, tls: Tls | None = None) -> None:
        parts = urls.split(",") if isinstance(urls, str) else urls
        self.urls = tuple(url.strip().rstrip("/") for url in parts if url.strip())
        # Reading the system's certificates takes at least 20 ms of CPU, in each window.
        secure = any(url.lower().startswith("https:") for url in self.urls)
        verify = tls.build_http_context() if tls is not None else secure
        self._client = httpx.Client(timeout=timeout_s, trust_env=False, verify=verify)

    def get(self, path: str) -> str:
        """The body of `path`. Raises SourceUnavailable, which names every url and why it did not answer."""
        body = self.find(path, missing=())
        return body or ""

    def find(self, path: str, missing: Collection[int] = _MISSING) -> str | None:
        """Like `get`; None if the first that answers returns one of the HTTP codes `missing`: it has no such page."""
        reasons = []
        for url in self.urls:
            code, text = self._ask(url, path)
            if code == httpx.codes.OK:
                return text
            if code in missing:
                return None
            reasons.append(f"{url}: {text}")
        raise SourceUnavailable(
            f"the status port does not answer {path.partition('?')[0]}",
            where={"tried": "; ".join(reasons) or "no url"},
            hint="check that it runs: source.status-url is the status port of a TiDB (10080), or that of the feeder of"
            " a MySQL or MariaDB source (`status-addr` in feeder.toml)",
        )

    def find_each(self, path: str) -> Iterator[tuple[str, str | None]]:
        """Each url that answers, with the body of `path`; None if it has no such page."""
        for url in self.urls:
            code, text = self._ask(url, path)
            if code == httpx.codes.OK or code in _MISSING:
                yield url, text if code == httpx.codes.OK else None

    def _ask(self, url: str, path: str) -> tuple[int, str]:
        """The HTTP code and the body, or why it is none; code 0 = nobody answers."""
        try:
            answer = self._client.get(f"{url}{path}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return 0, str(error) or type(error).__name__
        if answer.status_code == httpx.codes.OK:
            return answer.status_code, answer.text
        return answer.status_code, f"HTTP {answer.status_code} {answer.text[:200].strip()}"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class HttpHistory:
    """The DDL history at a status port, `/ddl/history` (since TiDB 6.2 with start_job_id)."""

    def __init__(self, port: StatusPort) -> None:
        self._port = port

    def fetch_page(self, below: int) -> list[dict[str, Any]]:
        """The newest jobs with id < `below` (0 = no limit), newest first; empty if there are none."""
        # Depending on the version, the answer includes start_job_id itself or not; both are handled.
        path = f"/ddl/history?start_job_id={below}&limit={PAGE}" if below else f"/ddl/history?limit={PAGE}"
        jobs = self._parse(path, self._port.get(path))
        page = sorted((job for job in jobs if not below or job["id"] < below), key=lambda job: -int(job["id"]))
        if below and jobs and not page and len(jobs) > 1:
            raise WireError(
                "the status port does not page through its DDL history",
                where={"path": path, "urls": ",".join(self._port.urls)},
                hint="/ddl/history accepts start_job_id since TiDB 6.2",
            )
        return page

    def fetch_by_id(self, ids: Collection[int]) -> dict[int, dict[str, Any]]:
        """The finished jobs among `ids`."""
        wanted, by_id = set(ids), dict[int, dict[str, Any]]()
        remaining = sorted(wanted)
        while remaining:
            page = self.fetch_page(remaining[-1] + 1)
            by_id.update((job["id"], job) for job in page if job["id"] in wanted)
            least = page[-1]["id"] if page else 0
            remaining = [job_id for job_id in remaining if job_id < least]
        return by_id

    def fetch_running(self) -> None:
        """None: a status port does not list running jobs."""

    def close(self) -> None:
        """Do nothing: the owner of the port closes it."""

    def _parse(self, path: str, body: str) -> list[dict[str, Any]]:
        try:
            jobs = json.loads(body)
            # TiDB returns null for an empty history.
            return [{**job, "id": int(job["id"])} for job in jobs or []]
        except (ValueError, TypeError, KeyError) as error:
            raise WireError(f"the answer to {path} is not a list of DDL jobs: {error!r}") from error


class TidbSource:
    """`pd` gives the clock, `status_url` (one url or a comma list) all else; see `Source`.

    `history`: where to read DDL jobs, if not from the status port; it is closed with this object.
    """

    def __init__(
        self,
        pd: Clock,
        status_url: str | Sequence[str],
        timeout_s: float = 10.0,
        *,
        tls: Tls | None = None,
        history: JobHistory | None = None,
    ) -> None:
        self._pd = pd
        self.port = StatusPort(status_url, timeout_s, tls)
        self._history: JobHistory = history or HttpHistory(self.port)

    def fetch_ts(self) -> int:
        """A fresh timestamp."""
        return self._pd.fetch_ts()

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        """Committed, RolledBack, Locked or Unknown (Absent is one); raises SourceUnavailable."""
        if not key:
            return Unknown("its prewrite has no key to look up")
        return read_status(self.port.get(f"/mvcc/hex/{key.hex()}"), start_ts)

    def fetch_ddl_jobs(self, newer_than_job_id: int, started_by: int | None = None) -> Iterator[dict[str, Any]]:
        """Finished jobs with id > `newer_than_job_id`, newest first, a page at a time.

        `started_by` (a ts) skips jobs that were submitted later, except for some. This takes a few dozen requests,
        however many jobs there are, so a reader that lags far behind does not read the newest history each time.
        """
        page = self._history.fetch_page(0)
        if started_by is not None:
            page = self._find_page(page, started_by)
        while page:
            for job in page:
                if job["id"] <= newer_than_job_id:
                    return
                yield job
            page = self._history.fetch_page(page[-1]["id"])

    def _find_page(self, newest: list[dict[str, Any]], ts: int) -> list[dict[str, Any]]:
        """The page such that all jobs with start_ts <= `ts` are in it or in older pages; `newest` is the first page."""
        if not newest or _start_ts(newest[-1]) <= ts:
            return newest
        low, high = 0, int(newest[-1]["id"])
        while high - low > SPARE:
            page = self._history.fetch_page((low + high) // 2)
            if page and _start_ts(page[0]) > ts:
                high = int(page[0]["id"])
            else:
                low = (low + high) // 2
        return self._history.fetch_page(high + SPARE)

    def fetch_ddl_jobs_by_id(self, ids: Collection[int]) -> dict[int, dict[str, Any]]:
        """The finished jobs among `ids`."""
        return self._history.fetch_by_id(ids) if ids else {}

    def fetch_running_jobs(self) -> list[dict[str, Any]] | None:
        """The unfinished jobs, if the history has them (by SQL); None: use `fetch_schema_version` instead."""
        return self._history.fetch_running()

    def fetch_schema_version(self) -> int | None:
        """The newest schema version of any DDL step so far; None if the source has no schema versions, so that each of
        its DDL is one step. Raises SourceUnavailable, WireError."""
        return parse_newest_version(self.port.get(f"/mvcc/hex/{VERSION_KEY.hex()}"))

    def fetch_schema_step(self, version: int) -> DdlStep | None:
        """The step that created `version`; None if it was never created. Raises SourceUnavailable, WireError."""
        return parse_step(version, self.port.get(f"/mvcc/hex/{encode_step_key(version).hex()}"))

    def fetch_shown_table(self, table_id: int) -> ShownTable:
        """The server's current table, including steps of a running DDL. Raises SourceUnavailable, WireError."""
        return parse_shown_table(self.port.find(f"/db-table/{table_id}"))

    def close(self) -> None:
        """Close the connections to the status port and the history; the owner of the clock closes it."""
        self.port.close()
        self._history.close()


def _start_ts(job: dict[str, Any]) -> int:
    return int(job.get("start_ts") or 0)
