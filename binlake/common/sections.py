"""Sections of the configuration that other rooms use without `binlake.config`.

They say which changes are replicated, under which names (the keys of drainer and DM: docs/reference/filters.md), and
which files a link with TLS needs. All sections have a common base: kebab-case keys, frozen values, no unknown keys.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

TsText = Annotated[str, Field(pattern=r"^(-1|[0-9]{1,20})$")]
"""A commit_ts as decimal text, or -1."""
PlaceText = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,19}$")]
"""A commit_ts of the source, above 0, as decimal text."""


def _to_kebab(name: str) -> str:
    return name.replace("_", "-")


def _split_comma_list(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


NameList = Annotated[tuple[str, ...], BeforeValidator(_split_comma_list)]
"""Names as a list or as text with commas."""


_WITH_PORT = re.compile(r"[^:]*:[0-9]*|\[.*\](:[0-9]*)?")
"""An address of IPv6 has more than one colon, and no brackets."""


def _require_host(host: str) -> str:
    # A port or a scheme would be looked up as a part of the name.
    if "/" in host:
        raise ValueError("it must be a host name or address, without a scheme and a path")
    if _WITH_PORT.fullmatch(host):
        raise ValueError("it must be a host name or address alone: the port has its own key, `port`")
    return host


HostText = Annotated[str, AfterValidator(_require_host)]
"""The name or address of a host."""


class Section(BaseModel):
    """A section of the TOML."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=_to_kebab, populate_by_name=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_pydantic_accepts(cls, raw: object) -> object:
        """Both spellings of one key, of which one would win, and booleans as numbers."""
        if isinstance(raw, dict):
            for name, field in cls.model_fields.items():
                if field.alias != name and field.alias in raw and name in raw:
                    raise ValueError(f"`{field.alias}` is given twice: also as `{name}`")
                if isinstance(raw.get(field.alias, raw.get(name)), bool) and field.annotation in _NUMBERS:
                    raise ValueError(f"`{field.alias or name}` is a number, not true or false")
        return raw


_NUMBERS = (int, float, int | None)


class TableName(Section):
    """A table pattern; a leading `~` makes either part a regular expression."""

    db_name: str = Field(description="database, or ~regex")
    tbl_name: str = Field(description="table, or ~regex")


class FilterSection(Section):
    """Which tables are replicated: the drainer's lists (reference: tidb-binlog 5.6), case-insensitive."""

    ignore_schemas: NameList = Field(
        ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "mysql"),
        description="databases that are not replicated; comma list, ~regex",
    )
    ignore_table: tuple[TableName, ...] = Field((), description="tables that are not replicated")
    replicate_do_db: NameList = Field((), description="if set, only these databases (or the tables below)")
    replicate_do_table: tuple[TableName, ...] = Field((), description="if set, only these tables (or databases above)")
    ignore_txn_commit_ts: tuple[TsText, ...] = Field(
        (), description="commit_ts of transactions that are skipped; each skip is recorded in the lake's table `window`"
    )
    kept_rows: Literal["error", "replace"] = Field(
        "error",
        description="for a rule that drops DELETE or UPDATE on a table with more than one unique key, so that old rows"
        " stay at the target: `error` refuses the rule, `replace` allows a later REPLACE to remove such a row",
    )
    renamed_out: Literal["keep", "drop"] = Field(
        "keep",
        description="for a table that a RENAME moves out of the filter: `keep` leaves it at the target (a later CREATE"
        " of its name is refused while it exists), `drop` drops it there",
    )


class BlockAllowList(Section):
    """Which tables are replicated, as in DM; an error together with the table lists of `[filter]`."""

    do_dbs: NameList = Field((), description="if set, only these databases; `*`, `?`, `[a-z]`, or ~regex")
    do_tables: tuple[TableName, ...] = Field(
        (), description="if set, only these tables, in databases that the other lists allow"
    )
    ignore_dbs: NameList = Field((), description="databases that are not replicated; only used without do-dbs")
    ignore_tables: tuple[TableName, ...] = Field(
        (), description="tables that are not replicated unless do-tables names them"
    )


class EventRule(Section):
    """Drops or keeps kinds of changes of the tables that match (DM's binlog event filter)."""

    schema_pattern: str = Field(min_length=1, description="databases of the source: `*` (last), `?`, `[a-z]`, ~regex")
    table_pattern: str = Field("", description="tables of the source; empty = all tables and the database itself")
    events: tuple[str, ...] = Field((), description="insert, update, delete, create table, …, all dml, none ddl, all")
    sql_pattern: tuple[str, ...] = Field(
        (), description="regular expressions on DDL text, case-insensitive; one must match"
    )
    action: Literal["Ignore", "Do", "Error"] = Field(
        "Do", description="Ignore = drop matching changes; Do = drop all others; Error = stop at a matching change"
    )


class ExtractTable(Section):
    """A column at the target whose value a regular expression captures from the source table's name."""

    table_regexp: str = Field(description="the value is its capture groups, joined; no match = empty text")
    target_column: str = Field(min_length=1, description="column of the target")


class ExtractSchema(Section):
    """A column at the target whose value a regular expression captures from the source database's name."""

    schema_regexp: str = Field(description="the value is its capture groups, joined; no match = empty text")
    target_column: str = Field(min_length=1, description="column of the target")


class ExtractSource(Section):
    """A column at the target whose value a regular expression captures from the source's name.

    A feeder's source has its name in feeder.toml (DM's source-id), a TiDB source that of the replication.
    """

    source_regexp: str = Field(description="the value is its capture groups, joined; no match = empty text")
    target_column: str = Field(min_length=1, description="column of the target")


ShardMode = Literal["", "pessimistic", "optimistic"]
"""How DDL of tables that share a target is merged: DM's names."""


class RouteRule(Section):
    """The name at the target of tables of the source (DM's table routing)."""

    schema_pattern: str = Field(min_length=1, description="databases of the source: `*` (last), `?`, `[a-z]`, ~regex")
    table_pattern: str = Field(
        "", description="tables; empty = a rule for the database; rules with tables take precedence"
    )
    target_schema: str = Field(
        min_length=1,
        description="database at the target; `{1}` stands for the text that the only group of a ~regex in"
        " schema-pattern captures; such a rule applies only if no other rule does",
    )
    target_table: str = Field("", description="table at the target; empty = the source's name")
    extract_table: ExtractTable | None = Field(None, description="a column with the source table's name")
    extract_schema: ExtractSchema | None = Field(None, description="a column with the source database's name")
    extract_source: ExtractSource | None = Field(None, description="a column with the source's name")


class DdlReplacement(Section):
    """A DDL of the source that the target replaces by another statement (docs/understand/target-mapping.md)."""

    commit_ts: TsText = Field(description="commit_ts of the DDL")
    sql: str = Field(min_length=1, description="one DDL statement in the target's dialect, run in the DDL's database")


class DdlInjection(Section):
    """A statement that runs only at the target, before the first change at or after a commit_ts.

    docs/understand/target-mapping.md says exactly when it runs.
    """

    commit_ts: PlaceText = Field(
        description="commit_ts: the statement runs after all earlier changes, and before the DDL or rows with this"
        " commit_ts"
    )
    sql: str = Field(min_length=1, description="one DDL statement in the target's dialect")
    db: str = Field(min_length=1, description="database of the target for names without a database")


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
            raise ValueError("a rule may have expressions for only one kind of change: insert, update or delete")
        return self


class LoopbackSection(Section):
    """Two replications in opposite directions: each leaves out what the other one wrote (tidb-binlog 5.11)."""

    loopback_control: bool = Field(
        False, description="mark the transactions that this replication writes, and leave out those that have the mark"
    )
    channel_id: int = Field(0, ge=0, description="the same number on both sides, another one for each pair")
    mark_schema: str = Field("retl", min_length=1, description="database of the mark table, the same on both sides")
    mark_table: str = Field("_drainer_repl_mark", min_length=1, description="the mark table")
    sync_ddl: bool | None = Field(
        None,
        description="whether DDL is replicated; required with loopback-control: true on one side, false on the other",
    )

    @model_validator(mode="after")
    def _check_one_side(self) -> LoopbackSection:
        if self.loopback_control and self.sync_ddl is None:
            raise ValueError("with loopback-control, set sync-ddl: true on one of the two sides, false on the other")
        return self

    @property
    def copies_ddl(self) -> bool:
        """True if DDL runs on the target."""
        return self.sync_ddl is not False


SslMode = Literal["preferred", "required", "verify-ca", "verify-identity", "disabled"]
"""The modes of MySQL's clients."""
_CHECKING = ("verify-ca", "verify-identity")


class SecuritySection(Section):
    """TLS to PD and TiDB's status port if their URL is https://, and to pumps and `source.sql` if any file is given."""

    ssl_ca: str = Field(
        "", description="PEM file of the CA that signed the servers' certificates; empty = the system's CAs"
    )
    ssl_cert: str = Field("", description="PEM file of the client certificate, if the servers require one")
    ssl_key: str = Field("", description="PEM file of the client certificate's key")

    def list_files(self) -> tuple[str, str, str]:
        """CA, certificate and key; empty = none."""
        return self.ssl_ca, self.ssl_cert, self.ssl_key


class SqlSecurity(SecuritySection):
    """TLS towards this server."""

    ssl_mode: Literal["", SslMode] = Field(
        "",
        description="as of MySQL's clients: `preferred`: TLS if the server offers it, its certificate is not checked;"
        " `required`: TLS, not checked; `verify-ca`: signed by ssl-ca; `verify-identity`: signed by ssl-ca (empty: a CA"
        " of the system) for this host; `disabled`. Empty = `verify-identity` if any file is given, else `preferred`",
    )

    @model_validator(mode="after")
    def _require_files_that_count(self) -> SqlSecurity:
        if any(self.list_files()) and self.mode in ("preferred", "disabled"):
            raise ValueError(f"`ssl-mode` {self.mode} uses no files: set `required` or `verify-identity`")
        if self.ssl_ca and not self.checks_certificate:
            raise ValueError(f"`ssl-mode` {self.mode} does not check the certificate, so `ssl-ca` has no effect")
        return self

    @property
    def mode(self) -> SslMode:
        """The mode that applies."""
        return self.ssl_mode or ("verify-identity" if any(self.list_files()) else "preferred")

    @property
    def checks_certificate(self) -> bool:
        """Whether a server with another's certificate is refused."""
        return self.mode in _CHECKING
