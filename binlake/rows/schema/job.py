"""A DDL job of the history: its parsed fields together with its raw JSON (tidb-binlog 1.13)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from binlake.errors import SchemaError
from binlake.rows.schema.actions import UNSUPPORTED, Action, JobState

Json = Mapping[str, Any]

_EFFECTIVE = frozenset({JobState.DONE, JobState.SYNCED})


@dataclass(frozen=True)
class DdlJob:
    """One job. `type` and `state` are TiDB's numbers; `schema_version` 0 = never took effect; ts are TSOs.

    `start_ts`: when the job was submitted; it may wait. `began_ts`: when its first step ran. `ready_ts`: when the last
    of its clauses had begun and, if that reads the table, had begun to read it. `text` is the exact JSON as it was
    read; `db_info`, `table_info`, `multiple_table_infos` are its raw `binlog` parts (the definitions after the job).
    """

    id: int
    type: int
    state: int
    schema_id: int
    table_id: int
    schema_name: str
    table_name: str
    query: str
    schema_version: int
    start_ts: int
    finished_ts: int
    db_info: Json | None = field(repr=False)
    table_info: Json | None = field(repr=False)
    multiple_table_infos: tuple[Json, ...] = field(repr=False)
    raw_args: Any = field(repr=False)
    text: str = field(repr=False)
    began_ts: int = 0
    ready_ts: int = 0

    @property
    def action(self) -> Action | None:
        """The kind of the job, or None for a number that this version of Binlake does not know."""
        return Action(self.type) if self.type in Action.__members__.values() else None

    @property
    def label(self) -> str:
        """The kind for people: `add column`, or `action 99`."""
        action = self.action
        return action.label if action else f"action {self.type}"

    @property
    def took_effect(self) -> bool:
        """True if the job changed the schema: its state is done or synced, and it has a schema version."""
        return self.state in _EFFECTIVE and self.schema_version != 0

    @property
    def is_supported(self) -> bool:
        """False for kinds that are not replicated (placement, TiFlash status, locks, resource groups...)."""
        return self.type not in UNSUPPORTED

    @classmethod
    def parse(cls, text: str) -> DdlJob:
        """Parse the JSON text of a job (`job_meta`); raises SchemaError naming the problem."""
        try:
            return cls._from(json.loads(text), text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"a DDL job cannot be read: {error!r}", where={"job": text[:80]}) from error

    @classmethod
    def from_dict(cls, data: Json) -> DdlJob:
        """The job of parsed JSON; `text` becomes its compact form."""
        return cls.parse(json.dumps(data, ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def _from(cls, data: Json, text: str) -> DdlJob:
        binlog = data.get("binlog") or {}
        return cls(
            id=int(data["id"]),
            type=int(data["type"]),
            state=int(data["state"]),
            schema_id=int(data["schema_id"]),
            table_id=int(data["table_id"]),
            schema_name=data.get("schema_name") or "",
            table_name=data.get("table_name") or "",
            query=data.get("query") or "",
            schema_version=int(binlog.get("SchemaVersion") or 0),
            start_ts=int(data.get("start_ts") or 0),
            finished_ts=int(binlog.get("FinishedTS") or 0),
            db_info=binlog.get("DBInfo"),
            table_info=binlog.get("TableInfo"),
            multiple_table_infos=tuple(binlog.get("MultipleTableInfos") or ()),
            raw_args=data.get("raw_args"),
            text=text,
            began_ts=_read_began_ts(data),
            ready_ts=_compute_ready_ts(data),
        )


def _read_began_ts(data: Json) -> int:
    return int(data.get("real_start_ts") or data.get("start_ts") or 0)


def _compute_ready_ts(data: Json) -> int:
    clauses = (data.get("multi_schema_info") or {}).get("sub_jobs") or ()
    times = (int(part.get(name) or 0) for part in (data, *clauses) for name in ("real_start_ts", "snapshot_ver"))
    return max(_read_began_ts(data), *times)


class JobVersion(NamedTuple):
    """The fields that order jobs; `version` 0 = the job did not take effect."""

    job_id: int
    version: int
    finished_ts: int


def read_job_version(data: Json) -> JobVersion:
    """Read the JobVersion from a job's JSON without parsing the rest. Raises SchemaError."""
    try:
        binlog = data.get("binlog") or {}
        version = int(binlog.get("SchemaVersion") or 0) if int(data["state"]) in _EFFECTIVE else 0
        return JobVersion(int(data["id"]), version, int(binlog.get("FinishedTS") or 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"a DDL job cannot be read: {error!r}", where={"job": str(data)[:80]}) from error
