"""Which changes are replicated, under which names: the keys of drainer and DM (docs/reference/filters.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from binlake.base.sections.values import NameList, PlaceText, Section, TableName, TsText


class Filter(Section):
    """Which tables are replicated: the drainer's lists (reference: tidb-binlog 5.6), case-insensitive."""

    ignore_schemas: NameList = Field(
        ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "mysql"), description="databases left out, comma list, ~regex"
    )
    ignore_table: tuple[TableName, ...] = Field((), description="tables left out")
    replicate_do_db: NameList = Field((), description="if set, only these databases (or the tables below)")
    replicate_do_table: tuple[TableName, ...] = Field((), description="if set, only these tables (or databases above)")
    ignore_txn_commit_ts: tuple[TsText, ...] = Field((), description="transactions skipped by commit_ts, in the ledger")
    kept_rows: Literal["error", "replace"] = Field(
        "error",
        description="a rule that leaves rows on the target whose DELETE or UPDATE it dropped, on a table with more than"
        " one unique key: refuse, or let a later REPLACE remove such a row",
    )
    renamed_out: Literal["keep", "drop"] = Field(
        "keep",
        description="a table that a RENAME moves out of the filter: keep it at the target (a later CREATE of its "
        "name is refused while it exists), or drop it there",
    )


class BlockAllowList(Section):
    """DM's form of the same choice; together with the table lists of `[filter]` it is an error."""

    do_dbs: NameList = Field((), description="if set, only these databases; `*`, `?`, `[a-z]`, or ~regex")
    do_tables: tuple[TableName, ...] = Field((), description="if set, only these tables, of the databases let through")
    ignore_dbs: NameList = Field((), description="without do-dbs: databases left out")
    ignore_tables: tuple[TableName, ...] = Field((), description="tables left out that do-tables does not name")


class EventRule(Section):
    """Drops or keeps kinds of changes of the tables that match (DM's binlog event filter)."""

    schema_pattern: str = Field(min_length=1, description="databases of the source: `*` (last), `?`, `[a-z]`, ~regex")
    table_pattern: str = Field("", description="tables of the source; empty = all tables and the database itself")
    events: tuple[str, ...] = Field((), description="insert, update, delete, create table, …, all dml, none ddl, all")
    sql_pattern: tuple[str, ...] = Field((), description="regular expressions on DDL text, any of them, any case")
    action: Literal["Ignore", "Do", "Error"] = Field(
        "Do", description="Ignore = drop what matches; Do = drop what does not; Error = stop at what matches"
    )


class ExtractTable(Section):
    """A column at the target that takes what the regular expression captures in the source table's name."""

    table_regexp: str = Field(description="its capture groups, joined, are the value; no match = empty text")
    target_column: str = Field(min_length=1, description="column of the target")


class ExtractSchema(Section):
    """The same of the source database's name."""

    schema_regexp: str = Field(description="its capture groups, joined, are the value; no match = empty text")
    target_column: str = Field(min_length=1, description="column of the target")


class ExtractSource(Section):
    """The same of the source's name: that of feeder.toml (DM's source-id), of a TiDB the replication's."""

    source_regexp: str = Field(description="its capture groups, joined, are the value; no match = empty text")
    target_column: str = Field(min_length=1, description="column of the target")


ShardMode = Literal["", "pessimistic", "optimistic"]
"""How DDL of tables that share a target is merged: DM's names."""


class RouteRule(Section):
    """The target's name for tables of the source (DM's table routing)."""

    schema_pattern: str = Field(min_length=1, description="databases of the source: `*` (last), `?`, `[a-z]`, ~regex")
    table_pattern: str = Field("", description="tables; empty = a rule for the database, weaker than one with tables")
    target_schema: str = Field(
        min_length=1,
        description="database at the target; `{1}` = what the one group of a ~regex in schema-pattern captures: such a"
        " rule counts where no other one does",
    )
    target_table: str = Field("", description="table at the target; empty = the source's name")
    extract_table: ExtractTable | None = Field(None, description="a column for the source table")
    extract_schema: ExtractSchema | None = Field(None, description="a column for the source database")
    extract_source: ExtractSource | None = Field(None, description="a column for the source")


class DdlReplacement(Section):
    """One DDL of the source for which the target runs another statement (docs/understand/target-mapping.md)."""

    commit_ts: TsText = Field(description="commit_ts of the DDL")
    sql: str = Field(min_length=1, description="one DDL statement in the target's dialect, in the DDL's database")


class DdlInjection(Section):
    """One statement of the target's own, before the first change at or behind a commit_ts.

    docs/understand/target-mapping.md says how it is placed.
    """

    commit_ts: PlaceText = Field(
        description="it runs before the DDL or rows committed at this time, and after everything earlier"
    )
    sql: str = Field(min_length=1, description="one DDL statement in the target's dialect")
    db: str = Field(min_length=1, description="database of the target that bare names mean")


class ExpressionRule(Section):
    """Drops the row changes of one table for which an SQL expression is TRUE (DM's expression filter)."""

    schema_: str = Field(alias="schema", min_length=1, description="database of the source, by name")
    table: str = Field(min_length=1, description="table of the source, by name")
    insert_value_expr: str = Field("", description="on the new row of an INSERT")
    update_old_value_expr: str = Field("", description="on the old row of an UPDATE; both given = both must be TRUE")
    update_new_value_expr: str = Field("", description="on the new row of an UPDATE")
    delete_value_expr: str = Field("", description="on the old row of a DELETE")

    @model_validator(mode="after")
    def _check_one_class(self) -> ExpressionRule:
        update = self.update_old_value_expr or self.update_new_value_expr
        given = sum(map(bool, (self.insert_value_expr, update, self.delete_value_expr)))
        if given != 1:
            raise ValueError("one rule has the expressions of one kind of change: insert, update or delete")
        return self


class Loopback(Section):
    """Two replications in opposite directions: what one of them wrote, the other leaves out (tidb-binlog 5.11)."""

    loopback_control: bool = Field(
        False, description="mark the transactions that this replication writes, and leave out those with its mark"
    )
    channel_id: int = Field(0, ge=0, description="the same number on both sides; each pair has its own")
    mark_schema: str = Field("retl", min_length=1, description="database of the mark table, on both sides")
    mark_table: str = Field("_drainer_repl_mark", min_length=1, description="the mark table")
    sync_ddl: bool | None = Field(
        None, description="copy DDL; with loopback-control it must be set: true on one side, false on the other"
    )

    @model_validator(mode="after")
    def _check_one_side(self) -> Loopback:
        if self.loopback_control and self.sync_ddl is None:
            raise ValueError("with loopback-control, set sync-ddl: true on one of the two sides, false on the other")
        return self

    @property
    def copies_ddl(self) -> bool:
        """True when DDL runs on the target."""
        return self.sync_ddl is not False
