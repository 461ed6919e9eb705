"""The binlogs of a workload, as the commits that a lake holds of them."""

from __future__ import annotations

from collections.abc import Callable

from support.workload import Workload

from binlake.rows.schema import DdlJob, WindowDdl
from binlake.wire import binlog_pb2 as pb
from deploy.local.commitlog import CommitLog


def log_of(w: Workload, text: Callable[[int, str], str] = lambda _, query: query) -> CommitLog:
    """The commits; `text` returns the text of the DDL of a commit_ts, given the text without its semicolon."""
    prewrites = {b.start_ts: b for b in w.logged if b.tp == pb.Prewrite}
    jobs = {job.id: job for job in map(DdlJob.from_dict, w.jobs)}
    log = CommitLog([], [], [])
    for commit in (b for b in w.logged if b.tp == pb.Commit):
        first = prewrites[commit.start_ts]
        if first.ddl_job_id:
            query = text(commit.commit_ts, first.ddl_query.decode().rstrip(";"))
            log.ddls.append(WindowDdl(commit.commit_ts, commit.start_ts, first.ddl_job_id, 5, query))
            log.jobs.append((commit.commit_ts, jobs[first.ddl_job_id]))
        else:
            version = pb.PrewriteValue.FromString(first.prewrite_value).schema_version
            log.rows.append((commit.commit_ts, commit.start_ts, first.SerializeToString(), version))
    return log
