"""A DDL job of TiDB's history: numbers of its action and state, its parsed fields beside its raw JSON, and its session.

Numbers and fields: tidb-binlog 1.13, 5.3. TiDB converts stored values in the time zone of the session that sent the
DDL (hazards R-29). Only jobs that convert values contain the time zone (`reorg_meta.location`); for others the
configuration may give it (`source.time-zone`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, timedelta, timezone, tzinfo
from enum import IntEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlake import tso
from binlake.errors import SchemaError

MAX_USER_ID = (1 << 48) - 1 - 1000
"""Tables with a greater id are TiDB's own DDL tables (tidb-binlog 1.13)."""
DELETE_ONLY = 1
WRITE_ONLY = 2
WRITE_REORG = 3
DELETE_REORG = 4
"""Schema state: TiDB is removing the dropped object from the table; its replacement is public."""
PUBLIC = 5
"""Schema states of a column, index or table; also `ddl_schema_state` of a binlog."""
Json = Mapping[str, Any]
_SYSTEM = frozenset({"", "local", "system"})
_MINUTE = 60
_STRICT = 1 << 21 | 1 << 22
"""STRICT_TRANS_TABLES, STRICT_ALL_TABLES: the same bits in TiDB, MySQL and MariaDB."""
_FEEDER_FIELDS = ("family", "sql_mode", "moment")
"""The session fields, besides the zone, that a feeder's job contains."""


class Action(IntEnum):
    """What a DDL job does; numbers are TiDB's."""

    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT = 15
    SHARD_ROW_ID = 16
    TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_PARTITION = 19
    DROP_PARTITION = 20
    CREATE_VIEW = 21
    TABLE_CHARSET = 22
    TRUNCATE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    SCHEMA_CHARSET = 26
    LOCK_TABLE = 27
    UNLOCK_TABLE = 28
    REPAIR_TABLE = 29
    SET_TIFLASH_REPLICA = 30
    TIFLASH_STATUS = 31
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    ALTER_SEQUENCE = 35
    DROP_SEQUENCE = 36
    ADD_COLUMNS = 37
    DROP_COLUMNS = 38
    AUTO_ID_CACHE = 39
    REBASE_AUTO_RANDOM = 40
    INDEX_VISIBILITY = 41
    EXCHANGE_PARTITION = 42
    ADD_CHECK = 43
    DROP_CHECK = 44
    ALTER_CHECK = 45
    RENAME_TABLES = 47
    DROP_INDEXES = 48
    TABLE_ATTRIBUTES = 49
    PARTITION_ATTRIBUTES = 50
    CREATE_PLACEMENT = 51
    ALTER_PLACEMENT = 52
    DROP_PLACEMENT = 53
    PARTITION_PLACEMENT = 54
    SCHEMA_PLACEMENT = 55
    TABLE_PLACEMENT = 56
    CACHE_TABLE = 57
    STATS_OPTIONS = 58
    NOCACHE_TABLE = 59
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    FLASHBACK_CLUSTER = 62
    RECOVER_SCHEMA = 63
    REORGANIZE_PARTITION = 64
    TTL = 65
    NO_TTL = 67
    CREATE_RESOURCE_GROUP = 68
    ALTER_RESOURCE_GROUP = 69
    DROP_RESOURCE_GROUP = 70
    PARTITION_BY = 71
    REMOVE_PARTITIONING = 72

    @property
    def label(self) -> str:
        """The name for people: `add column`."""
        return self.name.lower().replace("_", " ")


class JobState(IntEnum):
    """State of a DDL job; only DONE and SYNCED changed the schema."""

    NONE = 0
    RUNNING = 1
    ROLLING_BACK = 2
    ROLLBACK_DONE = 3
    DONE = 4
    CANCELLED = 5
    SYNCED = 6
    CANCELLING = 7
    QUEUEING = 8
    PAUSED = 9
    PAUSING = 10


UNSUPPORTED = frozenset(
    {
        Action.TIFLASH_STATUS,
        Action.LOCK_TABLE,
        Action.UNLOCK_TABLE,
        Action.CACHE_TABLE,
        Action.NOCACHE_TABLE,
        Action.TABLE_ATTRIBUTES,
        Action.PARTITION_ATTRIBUTES,
        Action.CREATE_PLACEMENT,
        Action.ALTER_PLACEMENT,
        Action.DROP_PLACEMENT,
        Action.PARTITION_PLACEMENT,
        Action.SCHEMA_PLACEMENT,
        Action.TABLE_PLACEMENT,
        Action.CREATE_RESOURCE_GROUP,
        Action.ALTER_RESOURCE_GROUP,
        Action.DROP_RESOURCE_GROUP,
    }
)
"""Actions that neither the schema history nor a target applies (tidb-binlog 5.3)."""


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


@dataclass(frozen=True)
class SourceSession:
    """`zone`: `+08:00` or `America/New_York`; `day`: the date there while the source converted (2024-05-06).

    Empty = not known. `guessed`: texts may have been other bytes at the source (`source.invalid-text`).
    `lenient`: a TiDB's job says that values which do not fit were no error (in a feeder's job `sql_mode` says it).
    For a MySQL or MariaDB that a feeder reads, `family` says which of the two it is, `sql_mode` has its bits, and
    `moment` is the time of the statement there, in seconds of Unix time.
    """

    zone: str = ""
    day: str = ""
    guessed: bool = False
    family: str = ""
    sql_mode: int = 0
    moment: str = ""
    lenient: bool = False

    @property
    def is_lenient(self) -> bool:
        """True if values that did not fit were changed, not refused."""
        return not self.sql_mode & _STRICT if self.family else self.lenient

    @property
    def tz(self) -> tzinfo | None:
        """The time zone; None if it is not known, or if this machine does not know its name."""
        return read_zone(self.zone)

    @property
    def date(self) -> date | None:
        """The day as a date, or None if it is not known."""
        return date.fromisoformat(self.day) if self.day else None

    def to_dict(self) -> Json:
        """Plain values for JSON; empty if nothing is known."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, raw: Json) -> SourceSession:
        """Parse what `to_dict` gave."""
        return cls(**raw)

    @classmethod
    def of(cls, job: DdlJob, commit_ts: int, configured: str = "") -> SourceSession:
        """The session of `job`; `configured` is the time zone to use if the job does not contain it."""
        parsed = json.loads(job.text)
        zone = _read_location(parsed) or configured
        feeder_fields = {key: value for key, value in (parsed.get("feeder") or {}).items() if key in _FEEDER_FIELDS}
        if feeder_fields:
            return cls(zone, **feeder_fields)
        tz, lenient = read_zone(zone), _reads_lenient(parsed)
        if tz is None:
            return cls(zone, lenient=lenient)
        days = {tso.to_datetime(ts).astimezone(tz).date() for ts in (job.start_ts, commit_ts)}
        return cls(zone, days.pop().isoformat() if len(days) == 1 else "", lenient=lenient)


def _reads_lenient(job: Json) -> bool:
    """Whether a job of TiDB names an sql_mode without a strict mode."""
    mode = (job.get("reorg_meta") or {}).get("sql_mode")
    return mode is not None and not int(mode) & _STRICT


def read_zone(text: str) -> tzinfo | None:
    """Parse the time zone `+08:00`, `UTC` or `America/New_York`; None for a name that this machine does not know."""
    if text[:1] in ("+", "-"):
        hours, _, minutes = text[1:].partition(":")
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        return timezone(-offset if text[0] == "-" else offset)
    if text.upper() in ("UTC", "ETC/UTC"):
        return UTC
    try:
        return ZoneInfo(text) if text else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _read_location(job: Json) -> str:
    """The time zone of `reorg_meta.location`; empty if the job has none, or has the server's unnamed system zone."""
    location = (job.get("reorg_meta") or {}).get("location")
    if not location:
        return ""
    name, seconds = location.get("name") or "", int(location.get("offset") or 0)
    if seconds or not name:
        minutes = abs(seconds) // _MINUTE
        return f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return "" if name.lower() in _SYSTEM else str(name)
