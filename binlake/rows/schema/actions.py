"""DDL action and job state numbers of TiDB, and which actions the schema history ignores (tidb-binlog 1.13, 5.3)."""

from __future__ import annotations

from enum import IntEnum


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

MAX_USER_ID = (1 << 48) - 1 - 1000
"""Tables with a greater id are TiDB's own DDL tables (tidb-binlog 1.13)."""

DELETE_ONLY = 1
WRITE_ONLY = 2
WRITE_REORG = 3
DELETE_REORG = 4
"""Schema state: TiDB is removing the dropped object from the table; its replacement is public."""

PUBLIC = 5
"""Schema states of a column, index or table; also `ddl_schema_state` of a binlog."""
