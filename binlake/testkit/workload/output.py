"""The output of a workload: its end state and, if requested, everything it wrote, in the format of captures."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from binlake.rows.schema.forms import CHARSET, COLLATE
from binlake.testkit.workload.catalog import ID, WorkloadTable, build_row_formatter
from binlake.testkit.workload.spec import Col
from binlake.wire import binlog_pb2 as pb

Json = dict[str, Any]
_LENGTH = struct.Struct("<I")


def build_state_lines(db: str, tables: Iterable[WorkloadTable], commit_ts: int, step: str = "end") -> Iterator[Json]:
    """The lines of states.jsonl for the state at `commit_ts`."""
    tables = list(tables)
    names = sorted([db, table.name, "BASE TABLE"] for table in tables)
    yield {"commit_ts": str(commit_ts), "step": step, "databases": [db], "tables": names}
    for table in tables:
        shown, columns = build_row_formatter(table), table.list_column_names()
        yield {
            "commit_ts": str(commit_ts), "step": step, "table": f"{db}.{table.name}", "schema": db,
            "name": table.name, "kind": "BASE TABLE", "create": _create_sql(table), "columns": columns,
            "types": [col.sql_type for _, col in table.columns], "time_zone": "+00:00",
            "order_by": [ID] if table.keyed else columns, "rows": [shown(row) for row in table.iterate_rows()],
        }  # fmt: skip


def write_lines(path: Path, lines: Iterable[Json]) -> None:
    """Write one JSON value a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _create_sql(table: WorkloadTable) -> str:
    parts = [f"  {_render_column(col)}" for _, col in table.columns] + [f"  {key}" for key in table.render_keys()]
    options = f"ENGINE=InnoDB DEFAULT CHARSET={CHARSET} COLLATE={COLLATE}"
    return f"CREATE TABLE `{table.name}` (\n" + ",\n".join(parts) + f"\n) {options}"


def _render_column(col: Col) -> str:
    null = " NOT NULL" if col.not_null else " NULL" if "timestamp" in col.sql_type else ""
    default = f" DEFAULT '{col.default}'" if col.default is not None else "" if col.not_null else " DEFAULT NULL"
    return f"`{col.name}` {col.sql_type}{null}{default}"


class Recording:
    """A capture folder that grows while the workload runs; thread-safe."""

    def __init__(self, folder: Path, cluster_id: int, seed: int) -> None:
        self._folder = folder
        self._meta: Json = {"case": folder.name, "seed": seed, "cluster_id_in_requests": {str(cluster_id): 1}}
        self._jobs: list[Json] = []
        self._outcomes: list[Json] = []
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "binlogs.bin").open("wb")

    def record_binlog(self, binlog: pb.Binlog) -> None:
        """Record a binlog that was acked or handed to the pump client."""
        payload = binlog.SerializeToString()
        with self._lock:
            self._file.write(_LENGTH.pack(len(payload)) + payload)

    def record_job(self, job: Json) -> None:
        """Record a finished DDL job."""
        self._jobs.append(job)

    def record_orphan(self, start_ts: int, commit_ts: int) -> None:
        """Record a transaction whose C (`commit_ts` 0: whose R) was lost."""
        kind, outcome = ("orphan", "committed") if commit_ts else ("orphan_rollback", "rolled_back")
        line = {"start_ts": str(start_ts), "kind": kind, "outcome": outcome}
        with self._lock:
            self._outcomes.append(line | ({"commit_ts": str(commit_ts)} if commit_ts else {}))

    def close(self, states: Iterable[Json]) -> None:
        """Write the rest of the folder."""
        self._file.close()
        write_lines(self._folder / "ddl_jobs.jsonl", sorted(self._jobs, key=_get_version))
        write_lines(self._folder / "states.jsonl", states)
        (self._folder / "outcomes.json").write_text(json.dumps(self._outcomes, indent=1), encoding="utf-8")
        (self._folder / "meta.json").write_text(json.dumps(self._meta, indent=1), encoding="utf-8")


def _get_version(job: Json) -> int:
    version: int = job["binlog"]["SchemaVersion"]
    return version
