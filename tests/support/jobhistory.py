"""DDL histories as a status port returns them: sorted, or so long that only a streaming reader can handle them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from binlake.rows.schema import Action, DdlJob
from binlake.rows.schema.forms import build_database_json, build_job_json, build_table_json
from binlake.testkit.workload.spec import Col, build_column_json

TABLES = 500


def in_version_order(jobs: Iterable[DdlJob]) -> list[DdlJob]:
    """Jobs by schema version, the only correct order (neither job ids nor start times are; tidb-binlog 5.4)."""
    return sorted(jobs, key=lambda job: (job.schema_version, job.id))


def endless_jobs(count: int) -> Iterator[dict[str, Any]]:
    """`count` jobs, newest first: one database whose tables are created, widened, truncated and dropped in turn.

    Job n has schema version n and finishes at 10 n, except for pairs that finish in reverse order.
    """
    cols = [build_column_json(Col(f"c{i}"), i + 1, i) for i in range(2)]
    for version in range(count, 0, -1):
        yield _job(version, cols)


def _job(version: int, cols: list[dict[str, Any]]) -> dict[str, Any]:
    finished = 10 * version - (version % 7 == 0) * 3
    place = {"version": version, "start_ts": finished - 5, "finished_ts": finished}
    if version == 1:
        return build_job_json(1, Action.CREATE_SCHEMA, "CREATE DATABASE `d`", schema=(2, "d"), table=(0, ""),
                             db_info=build_database_json(2, "d"), **place)  # type: ignore[arg-type]  # fmt: skip
    turn, number = divmod(version, TABLES)
    name, table_id = f"t{number}", 1000 + number
    action = (Action.CREATE_TABLE, Action.ADD_COLUMN, Action.MODIFY_COLUMN, Action.DROP_TABLE)[turn % 4]
    info = build_table_json(table_id, name, cols if turn % 4 else cols[:1], [], pk_is_handle=False)
    return build_job_json(version, action, f"statement {version} of `{name}`", schema=(2, "d"), table=(table_id, name),
                         table_info=info, **place)  # type: ignore[arg-type]  # fmt: skip
