"""Faults of a target while the DDL model is applied: it fails over to an older copy, or its tables are rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pymysql
from ddlworld import State, World
from modelerrors import SCHEMA, Crash
from support.failover import TargetCopy, fail_over, take_copy
from support.mariadb import MariaDb, execute, rows

from binlake.rows.schema import Action

_QUIET = {"after_commit", "intent", "ddl_executed", "ddl_done"}
"""Steps at which the process holds no row locks."""
_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")


def databases(server: MariaDb) -> list[str]:
    """The databases of the target: the replicated ones and Binlake's own."""
    names = rows(server, "SELECT schema_name FROM information_schema.schemata")
    return [name for (name,) in names if name not in _SYSTEM and not name.startswith("copy_of_")]


class Failover:
    """A hook that copies the target at one quiet step, and replaces the target by the copy some steps later."""

    def __init__(self, server: MariaDb, random: Random) -> None:
        self._server = server
        self._kept = random.randint(0, 8)
        self._lost = self._kept + random.randint(0, 12)
        self._steps = 0
        self._copy: TargetCopy | None = None
        self.happened = False

    def __call__(self, step: str) -> None:
        self._steps += 1
        if self._copy is None and self._steps > self._kept and step in _QUIET:
            self._copy = take_copy(self._server, *databases(self._server))
        elif self._copy is not None and not self.happened and self._steps > self._lost:
            self.happened = True
            fail_over(self._server, self._copy, *databases(self._server))


class BuiltAnew:
    """A hook: at a DDL's step every table gets another id, as after OPTIMIZE, and the process dies."""

    def __init__(self, server: MariaDb, random: Random) -> None:
        self._server = server
        self._step = random.choice(("intent", "ddl_executed"))

    def __call__(self, step: str) -> None:
        if step == self._step:
            rebuild(self._server, "InnoDB", replicated(self._server))
            raise Crash


def replicated(server: MariaDb) -> list[str]:
    """The databases of the target without Binlake's own."""
    return [db for db in databases(server) if db != SCHEMA]


def rebuild(server: MariaDb, engine: str, dbs: Sequence[str]) -> bool:
    """Rebuild every table of `dbs` with `engine`; False if one is locked, or if the engine can hold none of them."""
    is_whole = True
    for db in dbs:
        for (table,) in rows(server, f"SHOW TABLES IN `{db}`"):
            try:
                execute(server, "SET lock_wait_timeout = 1", f"ALTER TABLE `{db}`.`{table}` ENGINE = {engine}")
            except pymysql.err.OperationalError:
                is_whole = False
    return is_whole


def answer_for_partition(server: MariaDb, world: World, shown: State) -> bool:
    """Answer whether a DROP or EXCHANGE PARTITION ran, as an operator is asked to (docs/understand/apply.md): the
    partitions show it, or the rows (of `shown`, the target) of the plain table. False for another DDL, which needs no
    answer."""
    ((commit_ts,),) = rows(server, f"SELECT ddl_commit_ts FROM {SCHEMA}.binlake_progress")
    job = next(job for ts, job in world.jobs if ts == commit_ts)
    table = job.table_info
    if job.action == Action.EXCHANGE_PARTITION:
        plain = world.renames.shown("", job.table_name)[1].lower()
        name = next(name for name in world.at(commit_ts) if name[1].lower() == plain)
        _set_ddl_state(server, shown[name] == world.at(commit_ts)[name])
        return True
    if job.action != Action.DROP_PARTITION or table is None:
        return False
    wanted = [one["name"]["O"] for one in table["partition"]["definitions"]]
    present = rows(server, "SELECT partition_name FROM information_schema.partitions WHERE table_name = %s"
                         " AND table_schema NOT LIKE 'copy\\_of\\_%%' ORDER BY partition_ordinal_position",
                 (world.renames.shown("", table["name"]["O"])[1],))  # fmt: skip
    _set_ddl_state(server, [name for (name,) in present] == wanted)
    return True


def _set_ddl_state(server: MariaDb, is_done: bool) -> None:
    execute(server, f"UPDATE {SCHEMA}.binlake_progress SET ddl_state = '{'done' if is_done else ''}'")
