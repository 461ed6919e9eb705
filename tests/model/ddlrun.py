"""One seed of the DDL model: a `World` is replicated under faults, and its databases are compared completely.

Compared at each checkpoint between windows: which tables exist, their columns in order, and every row, read by plain
SQL. A DDL that no target can run as TiDB does may be refused by its commit_ts; then the state before it is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from ddlclauses import Features
from ddlfaults import BuiltAnew, Failover, answer_for_partition, rebuild, replicated
from ddlkinds import world_of
from ddlreturns import Returns
from ddlworld import FILTERED, State, World
from modelerrors import SCHEMA, Crash, Wrong
from modelrun import Model, Scenario, Shape
from modelwindow import NAME, Converter, Statements
from simulator.faults.kinds import Kind
from support.mariadb import execute

from binlake.common import sql
from binlake.common.sections import RouteRule
from binlake.config import Replication
from binlake.config.servers import TargetSection
from binlake.errors import BinlakeError, Fenced, Permanent, TargetBusy, TargetRefused, TargetUnavailable
from binlake.rules import Rules
from binlake.rules.routes import Routes
from binlake.statements import Phase

_RULES = Rules.of(Replication.model_validate(
    {"name": NAME, "lake": {"path": "x"}, "filter": {
        "ignore-schemas": f"INFORMATION_SCHEMA,mysql,{FILTERED}", "renamed-out": "drop"}}
))  # fmt: skip
_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}


@dataclass
class DdlShape:
    """The parameters of a seed of this model."""

    features: Features = field(default_factory=Features)
    ddls: int = 9
    faults: bool = True


SHAPE = DdlShape()
"""The parameters of present seeds."""


class DdlModel(Model):
    """A server for many seeds of the DDL model. `refused`: how often a target refused each DDL that it may refuse."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refused: Counter[str] = Counter()

    def run_ddl(self, seed: int, shape: DdlShape | None = None) -> None:
        """Run one seed. Raises Wrong, or an error of apply that nothing explains."""
        shape = shape or DdlShape()
        self.reader.ping(reconnect=True)
        world = world_of(Random(f"world {seed}"), shape.features, shape.ddls)
        self._clear_all()
        engine = "MyISAM" if shape.features.engines and seed % 10 == 9 else "InnoDB"
        execute(self.server, f"SET GLOBAL default_storage_engine = {engine}")
        try:
            DdlScenario(self, world, Random(f"run {seed}"), shape).run()
        except (Wrong, BinlakeError) as error:
            error.add_note("\n".join(world.drawn))
            raise
        finally:
            execute(self.server, "SET GLOBAL default_storage_engine = InnoDB")

    def _clear_all(self) -> None:
        with self.reader.cursor() as cursor:
            for table in (*sql.TABLES, *sql.LATER):
                cursor.execute(f"DELETE FROM {SCHEMA}.{table}")
            cursor.execute("SELECT schema_name FROM information_schema.schemata")
            own = {"information_schema", "mysql", "performance_schema", "sys", SCHEMA}
            for (name,) in cursor.fetchall():
                if name not in own:
                    cursor.execute(f"DROP DATABASE `{name}`")


class DdlScenario(Scenario):
    """The windows of one world, and the faults of the processes that apply them."""

    source: World

    def __init__(self, model: DdlModel, world: World, random: Random, shape: DdlShape) -> None:
        super().__init__(model, world, random, Shape(faults=shape.faults))
        self.world, self.features = world, shape.features
        self.converter = Converter(world, random, rules_of(world))
        self.returns = Returns(world, model, self.converter)
        self._in_doubt = False

    def converted(self, lo: int, hi: int, target: TargetSection, forms: str) -> Statements:
        """Like any scenario; if a rename into the filter is refused, an operator copies the table."""
        while True:
            try:
                statements = super().converted(lo, hi, target, forms)
            except TargetRefused as error:
                hi = self.returns.answer(error, lo, hi, self.ends)
                continue
            self.returns.require_answered(statements.manifest)
            return statements

    def attempt(self) -> None:
        """One run of finalize, with a fault of either model or without; an operator answers if it may ask."""
        try:
            self._attempt()
        except Permanent as error:
            is_asked = self._in_doubt and "set ddl_state" in error.hint
            if not is_asked or not answer_for_partition(self.model.server, self.world, self._shown()):
                raise
            self._in_doubt = False
            self.model.happened["asked"] += 1

    def _attempt(self) -> None:
        if self.shape.faults and self.random.random() < 0.2:
            engines = (self.other_engine,) if self.features.engines else ()
            self.random.choice((self.failed_over, self.built_anew, *engines))(self.next_window())
            self.check()
        else:
            super().attempt()

    def failed_over(self, statements: Statements) -> None:
        """The target fails over to a copy of itself that is some transactions older (R-61)."""
        hook = Failover(self.model.server, self.random)
        with suppress(TargetUnavailable, TargetBusy, Fenced):
            self.apply(statements, hook, self.target().model_copy(update={"worker_count": 1}))
        self.model.reader.ping(reconnect=True)
        self.model.happened[Kind.FAIL_OVER] += hook.happened
        self._in_doubt |= hook.happened

    def built_anew(self, statements: Statements) -> None:
        """A process dies at a DDL, and meanwhile every table gets another id."""
        with suppress(Crash):
            self.apply(statements, BuiltAnew(self.model.server, self.random))
            return
        self._in_doubt = True
        self.model.happened[Kind.TABLE_REBUILT] += 1

    def other_engine(self, statements: Statements) -> None:
        """Somebody converts the tables, or Binlake's own, to MyISAM: no transaction can be rolled back there, so
        nothing may be written.

        Not while a DDL may have begun: whether it ran would then be a question for an operator.
        """
        progress = self.standing()[1]
        if progress is None or progress.is_open or any(batch.phase == Phase.DDL for batch in statements.written):
            self.apply(statements)
            return
        server, own = self.model.server, self.random.random() < 0.3
        names = [SCHEMA] if own else replicated(server)
        is_whole = rebuild(server, "MyISAM", names)
        try:
            self.apply(statements)
            if is_whole and (own or statements.manifest.rows):
                raise Wrong("rows were written where transactions cannot be taken back")
        except Permanent:
            self.model.happened["other engine"] += 1
        finally:
            rebuild(server, "InnoDB", names)

    def compare(self, commit_ts: int) -> None:
        """Raise Wrong if the target differs from the source as it was at `commit_ts`."""
        expected, shown = self.world.at(commit_ts) | self.returns.ahead(commit_ts), self._shown()
        if shown != expected:
            raise Wrong(f"at {commit_ts}: {_difference(expected, shown)}")

    def _shown(self) -> State:
        with self.model.looking, self.model.reader.cursor() as cursor:
            cursor.execute(
                "SELECT table_schema, table_name, column_name, data_type, numeric_precision FROM"
                " information_schema.columns WHERE table_schema NOT IN"
                " ('information_schema', 'mysql', 'performance_schema', 'sys', %s)"
                " AND table_schema NOT LIKE 'copy\\\\_of\\\\_%%'"
                " ORDER BY table_schema, table_name, ordinal_position", (SCHEMA,),
            )  # fmt: skip
            columns: dict[tuple[str, str], list[tuple[str, str]]] = {}
            for db, table, column, kind, width in cursor.fetchall():
                columns.setdefault((db, table), []).append((column, _read(column, kind, width)))
            return {name: self._rows(cursor, name, found) for name, found in columns.items()}

    def _rows(self, cursor: Any, name: tuple[str, str], columns: list[tuple[str, str]]) -> Any:
        cursor.execute(f"SELECT {', '.join(read for _, read in columns)} FROM `{name[0]}`.`{name[1]}`")
        return tuple(column for column, _ in columns), sorted(map(tuple, cursor.fetchall()), key=repr)


def rules_of(world: World) -> Rules:
    """The filter of the replication, its routes, and its configured zone."""
    own = next(db.name for db in world.databases if db.name.lower() != FILTERED)
    routes = [RouteRule.model_validate(rule) for rule in world.renames.config(own)]
    out = "keep" if world.keeps else "drop"
    return replace(_RULES, zone=world.told_zone, routes=Routes(routes), renamed_out=out)


def _read(column: str, kind: str, width: int | None) -> str:
    if kind == "bit":
        return f"LPAD(HEX(`{column}`), {((width or 1) + 7) // 8 * 2}, '0')"
    return f"HEX(`{column}`)" if kind in _BINARY else f"CAST(`{column}` AS CHAR)"


def _difference(expected: State, found: State) -> str:
    differences = []
    for name in sorted(expected.keys() | found.keys()):
        wanted, shown = expected.get(name), found.get(name)
        if wanted is None or shown is None:
            differences.append(f"{name} is {'missing' if shown is None else 'there but should not be'}")
        elif wanted != shown:
            differences.append(f"{name} is {shown}, not {wanted}")
    return "; ".join(differences)


def ddl_brought_down(model: DdlModel, seeds: Iterable[int], shape: DdlShape = SHAPE) -> None:
    """Run each seed; raises an error with the command that repeats a failed one."""
    for seed in seeds:
        try:
            model.run_ddl(seed, shape)
        except (Wrong, BinlakeError) as error:
            line = f"BINLAKE_DDL_SEED={seed} .venv/bin/python -m pytest tests/model -k 'whole_databases and 0'"
            pytest.fail("\n".join([str(error), *error.__notes__, f"replay: {line}"]))
