"""All rules that decide which changes of the source are replicated and under which names; one value, sent to workers.

Order for a row change: table lists, event filter (both before it is decoded), routing, expression filter (S4-07). All
rules use the source's names. The expressions of a window are compiled with the definitions that occur in it.

With loopback control (tidb-binlog 5.11) a mark shows which transactions a pair of replications wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from binlake.common.sections import (
    BlockAllowList,
    DdlInjection,
    DdlReplacement,
    EventRule,
    ExpressionRule,
    FilterSection,
    LoopbackSection,
    RouteRule,
    ShardMode,
)
from binlake.dialect.replacement import Injection, parse_injections, parse_replacements
from binlake.errors import ConfigError
from binlake.rows.codec.transaction import TableLookup, decode_raw_changes
from binlake.rows.schema import TableDef, WindowSchemas
from binlake.rows.schema.forms import fold_name
from binlake.rules.events import DML, EventFilter
from binlake.rules.expressions import ChangeFilter, ExpressionFilter, RowFilter
from binlake.rules.routes import Routes
from binlake.rules.tables import BlockAllow, TableChoice, TableFilter


class MarkReader:
    """Recognizes the transactions that this pair of replications wrote."""

    def __init__(self, config: LoopbackSection) -> None:
        self._name = config.mark_schema.lower(), config.mark_table.lower()
        self._channel = str(config.channel_id)

    def is_mark(self, db: str, table: str) -> bool:
        """True for the mark table, and for its database if `table` is empty."""
        return (db.lower(), table.lower() or self._name[1]) == self._name

    def is_ours(self, payload: bytes, commit_ts: int, start_ts: int, tables: TableLookup) -> bool:
        """True if the transaction changed the mark row of this channel. Raises WireError, SchemaError."""
        _, changes = decode_raw_changes(payload, commit_ts, start_ts, tables, wanted=self._mark_columns)
        for _, _, _, before, after in changes:
            names, values = after or before or ((), [])
            channels = [value for name, value in zip(names, values, strict=True) if name.lower() == "channel_id"]
            if channels == [self._channel]:
                return True
        return False

    def _mark_columns(self, table: TableDef) -> tuple[str, ...]:
        return ("insert", "update", "delete") if self.is_mark(table.db, table.name) else ()


class ConfiguredSource(Protocol):
    """The settings of the section `source` that rules need."""

    @property
    def new_collation(self) -> bool:
        """Whether the source compares texts by their collations."""

    @property
    def time_zone(self) -> str:
        """The time zone of the source's sessions."""

    @property
    def invalid_text(self) -> Literal["refuse", "latin1"]:
        """How to handle texts that are not UTF-8."""

    @property
    def second_writes(self) -> Literal["refuse", "once"]:
        """How to handle row changes that may be logged twice."""

    @property
    def partition_rows(self) -> Literal["refuse", "removed"]:
        """How to handle rows of which it is not known whether they went with their partition."""


class ConfiguredTarget(Protocol):
    """The settings of the section `target` that rules need."""

    @property
    def checkpoint_schema(self) -> str:
        """The database of Binlake's tables."""


class Configured(Protocol):
    """The sections of a replication that define its rules (Replication of binlake.config, which imports this
    package)."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> ConfiguredSource: ...
    @property
    def target(self) -> ConfiguredTarget | None: ...
    @property
    def filter(self) -> FilterSection: ...
    @property
    def block_allow_list(self) -> BlockAllowList | None: ...
    @property
    def filters(self) -> tuple[EventRule, ...]: ...
    @property
    def routes(self) -> tuple[RouteRule, ...]: ...
    @property
    def shard_mode(self) -> ShardMode: ...
    @property
    def expression_filter(self) -> tuple[ExpressionRule, ...]: ...
    @property
    def ddl_replacement(self) -> tuple[DdlReplacement, ...]: ...
    @property
    def ddl_injection(self) -> tuple[DdlInjection, ...]: ...
    @property
    def loopback(self) -> LoopbackSection: ...


@dataclass(frozen=True)
class Rules:
    """The rules of one replication; `marks`: only with loopback control; `copies_ddl`: False if sync-ddl is false.

    `own_schema`: the database in which the opposite replication stores its position here; empty = none.
    `replacements`: commit_ts -> statement that replaces the DDL; `injections`: statements that run between changes.
    `zone`: time zone of the source's sessions, for DDL whose job does not contain it. `invalid_text`: how to handle
    texts that are not UTF-8; `second_writes`: how to handle row changes that TiDB may have logged twice;
    `partition_rows`: rows that may have gone with their partition. `shard_mode`: how DDL of tables that share a target
    is merged.
    """

    tables: TableChoice = field(default_factory=lambda: TableFilter(FilterSection()))
    events: EventFilter = field(default_factory=lambda: EventFilter(()))
    routes: Routes = field(default_factory=lambda: Routes(()))
    expressions: ExpressionFilter = field(default_factory=lambda: ExpressionFilter(()))
    marks: MarkReader | None = None
    own_schema: str = ""
    copies_ddl: bool = True
    kept_rows: Literal["error", "replace"] = "error"
    renamed_out: Literal["keep", "drop"] = "keep"
    replacements: Mapping[int, str] = field(default_factory=dict)
    injections: tuple[Injection, ...] = ()
    zone: str = ""
    invalid_text: Literal["refuse", "latin1"] = "refuse"
    second_writes: Literal["refuse", "once"] = "refuse"
    partition_rows: Literal["refuse", "removed"] = "refuse"
    shard_mode: ShardMode = ""

    @classmethod
    def of(cls, replication: Configured) -> Rules:
        """The rules of a configuration. Raises ConfigError naming settings that contradict each other."""
        lists = replication.block_allow_list
        loopback = replication.loopback
        return cls(
            TableFilter(replication.filter) if lists is None else BlockAllow(lists),
            EventFilter(replication.filters),
            Routes(replication.routes, replication.name),
            ExpressionFilter(replication.expression_filter, bytewise=not replication.source.new_collation),
            MarkReader(loopback) if loopback.loopback_control else None,
            _choose_own_schema(replication) if loopback.loopback_control else "",
            loopback.copies_ddl,
            replication.filter.kept_rows,
            replication.filter.renamed_out,
            _read_replacements(replication),
            parse_injections(replication.ddl_injection),
            replication.source.time_zone,
            replication.source.invalid_text,
            replication.source.second_writes,
            replication.source.partition_rows,
            replication.shard_mode,
        )

    def keeps(self, db: str, table: str) -> bool:
        """True if changes of the source's `db`.`table` are replicated; `table` is empty for the database."""
        if self.marks is not None and (self.marks.is_mark(db, table) or fold_name(db) == fold_name(self.own_schema)):
            return False
        return self.tables.keeps(db, table)

    def route(self, table: TableDef) -> tuple[str, str] | None:
        """(db, table) at the target; None if the table lists exclude the table."""
        return self.routes.map_table(table.db, table.name) if self.keeps(table.db, table.name) else None

    def list_passed_kinds(self, table: TableDef) -> frozenset[str]:
        """The kinds of row changes that the event filter lets through. Raises ConfigError (hazards R-14), Permanent."""
        passed = self.events.list_passed_kinds(table.db, table.name)
        by_expression = self.expressions.list_filtered_kinds(table.db, table.name)
        dropped = {"update", "delete"} - passed if passed else set()
        self.require_one_key(table, dropped | (by_expression - {"insert"}))
        self._require_key(table, passed, by_expression | (set(DML) - passed))
        return passed

    def _require_key(self, table: TableDef, passed: frozenset[str], dropped: frozenset[str] | set[str]) -> None:
        """Raise ConfigError if later changes of a table without a key would miss rows that a filter dropped.

        A row without a key is found by all its values, so a row that was not copied cannot be changed.
        """
        if table.kind != "table" or table.find_identity().kind != "row":
            return
        lacking, later = dropped & {"insert", "update"}, passed & {"update", "delete"}
        if lacking and later:
            raise ConfigError(
                f"a filter drops {' and '.join(sorted(lacking))} of a table without a key and lets"
                f" {' and '.join(sorted(later))} through, which would change rows that are not at the target",
                where={"table": f"{table.db}.{table.name}"},
                hint="drop update and delete as well, or remove the table from the rule",
            )

    def require_one_key(self, table: TableDef, dropped: set[str] | frozenset[str]) -> None:
        """Raise ConfigError if rows that the source no longer has may conflict at the target with later rows.

        `dropped`: the kinds of changes that are left out, in words (hazards R-14).
        """
        if not dropped or self.kept_rows == "replace" or len(table.list_unique_keys()) < 2:
            return
        raise ConfigError(
            f"a filter drops {' and '.join(sorted(dropped))} of a table with more than one unique key: a row that "
            "stays at the target for this reason is silently removed when another row gets its unique value",
            where={"table": f"{table.db}.{table.name}"},
            hint='remove the table from the rule, or accept it by filter.kept-rows = "replace"',
        )


def _read_replacements(replication: Configured) -> Mapping[int, str]:
    replacements = parse_replacements(replication.ddl_replacement)
    both = replacements.keys() & {int(ts) for ts in replication.filter.ignore_txn_commit_ts}
    if both:
        raise ConfigError(
            "a DDL is both left out by filter.ignore-txn-commit-ts and replaced by ddl-replacement",
            where={"commit_ts": min(both)},
            hint="use only one of the two",
        )
    return replacements


def _choose_own_schema(replication: Configured) -> str:
    return replication.target.checkpoint_schema if replication.target is not None else "tidb_binlog"


def build_row_filter(schemas: WindowSchemas, rules: Rules) -> RowFilter:
    """The filter for rows of a window; it uses the definition at each row's commit_ts (R-19). Raises ConfigError."""
    filters = []
    for db, table in rules.expressions.list_tables():
        for since, until, state in schemas.iterate_spans():
            definition = state.find(db, table)
            if definition is None or not rules.keeps(definition.db, definition.name):
                continue
            filters += [
                ChangeFilter(definition.db, definition.name, op, since, until, choices)
                for op, choices in rules.expressions.build_conditions(definition).items()
            ]
    return RowFilter(tuple(filters))
