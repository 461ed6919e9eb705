"""Drawn sources, replicated as a deployment does it: feeder, pumps, windows, a target, mirrors and a feed.

A world has many stories, each a database of its own, so that a fault and a window of all of them cost as much as those
of one. At the end every table of the source is compared with the target, the mirror and the feed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NoReturn

from faults import FAULTS, Crash, crashing
from feedcopy import CSV, FeedTable, read_feed
from shown import Table, read_database
from story import Story
from support.feeding import FedCluster
from support.hostile import restore_globals, set_hostile_globals
from support.mariadb import MariaDb, rows

from binlake.audit.audit import Audit
from binlake.base.sqlsession import set_variables
from spark_jobs.job.context import StageContext
from spark_jobs.job.runner import run_window

_NOT_HOSTILE = ("binlog_format", "default_storage_engine", "enforce_storage_engine", "sql_require_primary_key")
"""Global values with which people do not write row binlogs, lose rows at kill -9, or have no keyless tables."""

_NUMBERED = "the values of old rows are not known"
"""Part of a reason to set a table aside: its source numbered rows and logged no numbers."""
_OTHER_FAMILY = ("a DDL cannot be expressed in", "a stored value cannot be converted as the source converted it")
"""Parts of further reasons where the target is of the other family, which converts and computes differently."""


@dataclass
class World:
    """`seeds`: those of its stories. `source` and `target` are this world's alone: it stops and starts them.

    `happened` counts what was drawn and compared, so that a test can require that each kind was met.
    """

    folder: Path
    source: MariaDb
    target: MariaDb
    seeds: Sequence[int]
    happened: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._draw = Random(self.seeds[0])
        self._former: dict[int, dict[str, str]] = {}  # by port, the globals that were not hostile
        self.stories = [Story(seed, self.source) for seed in self.seeds]

    def run(self, rounds: int, steps: int) -> list[str]:
        """Run some `steps` steps of each story before the feeder starts, and twice in each round.

        The full load runs while the first round's steps do. Returns the differences.
        """
        for story in self.stories:
            story.create()
        self._run_stories(steps)
        self._set_hostile_globals()
        at = {"host": self.source.host, "port": self.source.port}
        sources = [{"name": "s", **at, "tracker": at}]
        with FedCluster(self.folder, self.source, sources, pumps=1) as cluster:
            cluster.start_feeder(bool)
            for _ in range(rounds):
                self._run_stories(steps)
                self._suffer(cluster)
                self._run_stories(steps)
                cluster.follow(self.source)
                self._run_windows(cluster)
            self._restore_globals()
            return self._find_differences(cluster)

    def _set_hostile_globals(self) -> None:
        for server in (self.source, self.target):
            with server.connect() as admin:
                set_variables(admin)
                former = set_hostile_globals(admin, leave=_NOT_HOSTILE)
                self._former.setdefault(server.port, former)

    def _restore_globals(self) -> None:
        for server in (self.source, self.target):
            with server.connect() as admin:
                set_variables(admin)
                restore_globals(admin, self._former[server.port])

    def _run_stories(self, steps: int) -> None:
        """Each story's next steps; their order is drawn, so that the databases' transactions mix."""
        turns = [story for story in self.stories for _ in range(2)]
        self._draw.shuffle(turns)
        for story in turns:
            story.run(max(steps // 4, 1))

    def _suffer(self, cluster: FedCluster) -> None:
        name = self._draw.choice(list(FAULTS))
        self.happened[name] += 1
        FAULTS[name](self.source, self.target, cluster)
        self._set_hostile_globals()  # a server that starts again has forgotten them

    def _context(self, cluster: FedCluster) -> StageContext:
        to = {"host": self.target.host, "port": self.target.port, "user": "root", "db-type": self.target.name}
        feed = {"name": "files", "sink-uri": f"file://{self.folder / 'files'}?protocol=csv", "csv": CSV}
        # A table that the target refuses leaves the others alone, and is reported at the end.
        lenient = {"on-table-error": "set-aside", "most-set-aside": 1000}
        replication = cluster.replication(target={**to, **lenient}, mirror={"enabled": True}, feed=[feed])
        return StageContext(replication, "world", _no_spark)

    def _run_windows(self, cluster: FedCluster) -> None:
        until = cluster.settle()
        with suppress(Crash), crashing(self._draw):
            run_window(self._context(cluster))
            self.happened["a window ended"] += 1
        while (self._context(cluster).windows.find_landed_ts() or 0) < until:
            run_window(self._context(cluster))
        # A sink of which a window died continues with the next run, even if nothing is new.
        run_window(self._context(cluster))

    def _find_differences(self, cluster: FedCluster) -> list[str]:
        context = self._context(cluster)
        audit, ts = Audit(context.paths, context.rules), context.windows.find_landed_ts()
        assert ts is not None
        aside, feed = self._read_aside(), read_feed(self.folder / "files")
        found = [f"{db}.{table} is set aside: {why}" for (db, table), why in aside.items() if not self._is_allowed(why)]
        for story in self.stories:
            source, target = read_database(self.source, story.db), read_database(self.target, story.db)
            for name, table in source.items():
                self.happened["tables"] += 1
                differences = (
                    "" if (story.db, name) in aside else self._compare_target(table, target.get(name)),
                    self._compare_mirror(table, audit, story.db, name, ts),
                    self._compare_feed(table, feed.get((story.db, name))),
                )
                found += [f"{story.db}.{name}: {one}" for one in differences if one]
        return found

    def _read_aside(self) -> dict[tuple[str, str], str]:
        """By table, the reasons of those that are set aside at the target."""
        listed = rows(self.target, "SELECT db, tbl, reason FROM tidb_binlog.binlake_aside")
        return {(db, table): reason for db, table, reason in listed}

    def _is_allowed(self, reason: str) -> bool:
        allowed = (_NUMBERED, *(_OTHER_FAMILY if self.source.name != self.target.name else ()))
        return any(part in reason for part in allowed)

    def _compare_target(self, source: Table, target: Table | None) -> str:
        if target is None:
            return "the target has no such table"
        difference = source.find_difference(target.columns, target.rows)
        return f"the target differs: {difference}" if difference else ""

    def _compare_mirror(self, source: Table, audit: Audit, db: str, name: str, ts: int) -> str:
        seen = audit.read_table_as_of(db, name, ts)
        if seen.inexact:
            self.happened[f"inexact: {seen.inexact}"] += 1
            return ""
        rows = [tuple(row[column] for column in seen.columns) for row in seen.rows]
        difference = source.find_difference(seen.columns, rows)
        return f"the mirror differs: {difference}" if difference else ""

    def _compare_feed(self, source: Table, copy: FeedTable | None) -> str:
        if copy is None:
            return "the feed has no such table"
        if copy.count is not None and copy.count != len(source.rows):
            return f"the feed differs: {copy.count} rows, not {len(source.rows)}"
        lacking = Counter(source.make_comparable(copy.list_written())) - Counter(source.make_comparable(source.rows))
        return f"the feed differs: {list(lacking)[:3]} ({lacking.total()}) are not at the source" if lacking else ""


def _no_spark() -> NoReturn:
    raise AssertionError("such small windows must not need Spark")
