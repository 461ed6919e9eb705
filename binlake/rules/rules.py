"""All that decides which changes of the source are replicated and under which names; one value, sent to workers.

Order for a row change: table lists, event filter (both before it is decoded), routing, expression filter (S4-07).
Everything is judged by the source's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from binlake.base.sections.rules import (
    BlockAllowList,
    DdlInjection,
    DdlReplacement,
    EventRule,
    ExpressionRule,
    Filter,
    Loopback,
    RouteRule,
    ShardMode,
)
from binlake.dialect.replacement import Injection, injections_of, replacements_of
from binlake.errors import ConfigError
from binlake.rows.schema import TableDef
from binlake.rows.schema.names import fold_name
from binlake.rules.events import DML, EventFilter
from binlake.rules.expressions import ExpressionFilter
from binlake.rules.loopback import MarkReader
from binlake.rules.routes import Routes
from binlake.rules.tables import BlockAllow, TableChoice, TableFilter


class ConfiguredSource(Protocol):
    """What rules ask of the section `source`."""

    @property
    def new_collation(self) -> bool:
        """Whether texts compare by their collation there."""

    @property
    def time_zone(self) -> str:
        """Of its sessions."""

    @property
    def invalid_text(self) -> Literal["refuse", "latin1"]:
        """The handling of texts that are not UTF-8."""

    @property
    def second_writes(self) -> Literal["refuse", "once"]:
        """The handling of row changes that may be logged twice."""


class ConfiguredTarget(Protocol):
    """What rules ask of the section `target`."""

    @property
    def checkpoint_schema(self) -> str:
        """The database of our own tables."""


class Configured(Protocol):
    """The sections of a replication that rules are made of (binlake.config's Replication, which rests on this room)."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> ConfiguredSource: ...
    @property
    def target(self) -> ConfiguredTarget | None: ...
    @property
    def filter(self) -> Filter: ...
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
    def loopback(self) -> Loopback: ...


@dataclass(frozen=True)
class Rules:
    """The rules of one replication; `marks` with loopback control only, `copies_ddl` False when sync-ddl is.

    `own_schema`: the database in which the opposite replication keeps its position here; empty = there is none.
    `replacements`: statements instead of the DDL of a commit_ts; `injections`: such that run between changes.
    `zone`: time zone of the source's sessions, for DDL whose job does not contain it. `invalid_text`: handling of
    texts that are not UTF-8, `second_writes`: of row changes that TiDB may have logged twice. `shard_mode`: how DDL of
    tables that share a target is merged.
    """

    tables: TableChoice = field(default_factory=lambda: TableFilter(Filter()))
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
    shard_mode: ShardMode = ""

    @classmethod
    def of(cls, replication: Configured) -> Rules:
        """The rules of a configuration. Raises ConfigError naming what does not hold together."""
        lists = replication.block_allow_list
        loopback = replication.loopback
        return cls(
            TableFilter(replication.filter) if lists is None else BlockAllow(lists),
            EventFilter(replication.filters),
            Routes(replication.routes, replication.name),
            ExpressionFilter(replication.expression_filter, bytewise=not replication.source.new_collation),
            MarkReader(loopback) if loopback.loopback_control else None,
            _own_schema(replication) if loopback.loopback_control else "",
            loopback.copies_ddl,
            replication.filter.kept_rows,
            replication.filter.renamed_out,
            _replacements(replication),
            injections_of(replication.ddl_injection),
            replication.source.time_zone,
            replication.source.invalid_text,
            replication.source.second_writes,
            replication.shard_mode,
        )

    def keeps(self, db: str, table: str) -> bool:
        """True when changes of the source's `db`.`table` are replicated; `table` empty for the database."""
        if self.marks is not None and (self.marks.is_mark(db, table) or fold_name(db) == fold_name(self.own_schema)):
            return False
        return self.tables.keeps(db, table)

    def route(self, table: TableDef) -> tuple[str, str] | None:
        """(db, table) at the target; None when the table lists leave the table out."""
        return self.routes.table(table.db, table.name) if self.keeps(table.db, table.name) else None

    def kinds(self, table: TableDef) -> frozenset[str]:
        """The kinds of row changes that the event filter lets through. Raises ConfigError (hazards R-14), Permanent."""
        passed = self.events.rows(table.db, table.name)
        by_expression = self.expressions.kinds(table.db, table.name)
        dropped = {"update", "delete"} - passed if passed else set()
        self.require_one_key(table, dropped | (by_expression - {"insert"}))
        self._require_key(table, passed, by_expression | (set(DML) - passed))
        return passed

    def _require_key(self, table: TableDef, passed: frozenset[str], dropped: frozenset[str] | set[str]) -> None:
        """A row without a key is found by all its values: what was not copied cannot be changed."""
        if table.kind != "table" or table.identity().kind != "row":
            return
        lacking, later = dropped & {"insert", "update"}, passed & {"update", "delete"}
        if lacking and later:
            raise ConfigError(
                f"a filter drops {' and '.join(sorted(lacking))} of a table without a key and lets"
                f" {' and '.join(sorted(later))} through: the rows it would change are not at the target",
                where={"table": f"{table.db}.{table.name}"},
                hint="drop update and delete as well, or remove the table from the rule",
            )

    def require_one_key(self, table: TableDef, dropped: set[str] | frozenset[str]) -> None:
        """A row that stays at the target although the source lacks it may conflict with a later one.

        `dropped`: what is left out, in words. Raises ConfigError (hazards R-14).
        """
        if not dropped or self.kept_rows == "replace" or len(table.unique_keys()) < 2:
            return
        raise ConfigError(
            f"a filter drops {' and '.join(sorted(dropped))} of a table with more than one unique key: a row kept "
            "this way is silently removed when another row takes its unique value",
            where={"table": f"{table.db}.{table.name}"},
            hint='remove the table from the rule, or accept it by filter.kept-rows = "replace"',
        )


def _replacements(replication: Configured) -> Mapping[int, str]:
    found = replacements_of(replication.ddl_replacement)
    both = found.keys() & {int(ts) for ts in replication.filter.ignore_txn_commit_ts}
    if both:
        raise ConfigError(
            "a DDL is left out by filter.ignore-txn-commit-ts and replaced by ddl-replacement",
            where={"commit_ts": min(both)},
            hint="use one of the two",
        )
    return found


def _own_schema(replication: Configured) -> str:
    return replication.target.checkpoint_schema if replication.target is not None else "tidb_binlog"
