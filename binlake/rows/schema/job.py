"""A DDL job of the history: the parsed fields and the raw JSON, never one without the other (tidb-binlog 1.13)."""

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

    `began_ts`: when its first step ran (`start_ts` is when it was submitted; it may wait). `ready_ts`: when the last of
    its clauses had begun, and had begun to read the table if it does. `text` is the exact JSON as it was read;
    `db_info`, `table_info`, `multiple_table_infos` are its `binlog` parts
    (the definitions after the job), still raw.
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
        """The kind of the job, or None for a number this version does not know."""
        return Action(self.type) if self.type in Action.__members__.values() else None

    @property
    def label(self) -> str:
        """The kind for people: `add column`, or `action 99`."""
        action = self.action
        return action.label if action else f"action {self.type}"

    @property
    def took_effect(self) -> bool:
        """True when the job changed the schema: done or synced, with a schema version."""
        return self.state in _EFFECTIVE and self.schema_version != 0

    @property
    def is_supported(self) -> bool:
        """False for kinds that are not replicated (placement, TiFlash status, locks, resource groups...)."""
        return self.type not in UNSUPPORTED

    @classmethod
    def parse(cls, text: str) -> DdlJob:
        """Read the JSON text of a job (`job_meta`); raises SchemaError saying what is wrong."""
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
            began_ts=_began_ts(data),
            ready_ts=_ready_ts(data),
        )


def _began_ts(data: Json) -> int:
    return int(data.get("real_start_ts") or data.get("start_ts") or 0)


def _ready_ts(data: Json) -> int:
    clauses = (data.get("multi_schema_info") or {}).get("sub_jobs") or ()
    times = (int(part.get(name) or 0) for part in (data, *clauses) for name in ("real_start_ts", "snapshot_ver"))
    return max(_began_ts(data), *times)


class JobVersion(NamedTuple):
    """What orders a job among others; `version` 0 = it did not take effect."""

    job_id: int
    version: int
    finished_ts: int


def read_job_version(data: Json) -> JobVersion:
    """That of a job's JSON, without parsing the rest. Raises SchemaError."""
    try:
        binlog = data.get("binlog") or {}
        version = int(binlog.get("SchemaVersion") or 0) if int(data["state"]) in _EFFECTIVE else 0
        return JobVersion(int(data["id"]), version, int(binlog.get("FinishedTS") or 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"a DDL job cannot be read: {error!r}", where={"job": str(data)[:80]}) from error
