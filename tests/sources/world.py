"""Drawn sources, replicated as a deployment does it: feeder, pumps, windows, a target, mirrors and a feed.

A world has many stories, each a database of its own, so that a fault and a window of all of them cost as much as those
of one. At the end every table of the source is compared with the target, the mirror and the feed, after another writer
has changed some tables of the target and `verify --fix` has put them right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from faults import FAULTS, Crash, crashing, kill_feeder, kill_pump
from feedcopy import CSV, FeedTable, read_feed
from foreign import FOREIGN_WRITES, write_foreign
from mirrorcopy import MirrorTable, read_mirrors
from shown import Name, Table, read_databases
from story import Links, Story
from support.feeding import FedCluster
from support.hostile import restore_globals, set_hostile_globals
from support.mariadb import MariaDb, execute, rows

from binlake.audit.audit import Audit
from binlake.common.sqllink import set_variables
from binlake.errors import Transient
from binlake.repair.verify import VerifyOptions
from binlake.spark_jobs.commands.verify import run_verify
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window

_NOT_HOSTILE = ("binlog_format", "default_storage_engine", "enforce_storage_engine", "sql_require_primary_key")
"""Global values with which people do not write row binlogs, lose rows at kill -9, or have no keyless tables."""

_SAME_FAMILY = (
    # Its source numbered rows, or computed values of zeros that were NULL, and logged neither.
    r"the values of old rows are not known: ",
    # Each row's session had a time zone of its own.
    r"only the source can compute: it depends on the time zone of the session",
)
"""Reasons (patterns) to set a table aside that no target can do without."""
_OTHER_FAMILY = (
    r"only the source can compute: a server of another family may compute it differently",
    r"a stored value cannot be converted as the source converted it",
    r"a DDL cannot be expressed in \w+: values of .* convert differently",
    r"a DDL cannot be expressed in \w+: SEQUENCE",
)
"""Further reasons where the target is of the other family, which converts and computes differently."""


MODES = ("", "optimistic", "pessimistic")
KILLED, PUMP_KILLED, TOGETHER = "the feeder is killed", "a pump is killed", "two windows at once"
SEVERAL = "several sources"
_ALL_FAULTS = (*FAULTS, KILLED, PUMP_KILLED)
HAPPENS = (*_ALL_FAULTS, TOGETHER, SEVERAL, *FOREIGN_WRITES)
"""All that may happen to a world, as `World.happened` counts it."""
_WRITTEN = 3
"""Tables of a world that another writer changes."""
_COMPARED = 0.25
"""Share of the worlds whose windows compare each table after a DDL."""
_AUDITED = 0.02
"""Share of the tables that are read by an audit as well."""
_OWN = "CREATE DATABASE own; CREATE TABLE own.notes (id INT PRIMARY KEY); INSERT INTO own.notes VALUES (1), (2)"
"""What people have beside the copies at a target, which no window and no repair touches."""
_UNDISTURBED, _TOGETHER = 0.5, 0.25
"""Shares of rounds in which the windows run as they should, and in which two processes run the same window."""


@dataclass
class World:
    """`seeds`: those of its stories, which take turns with `sources`. Its servers are this world's alone: it stops and
    starts them.

    Its faults and settings are drawn from `seed`. `happened` counts what was drawn and compared, so that a test can
    require that each kind was met.
    """

    folder: Path
    sources: Sequence[MariaDb]
    target: MariaDb
    seeds: Sequence[int]
    seed: int
    happened: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._draw, self._order = Random(f"faults {self.seed}"), Random(f"order {self.seed}")
        self._former: dict[int, dict[str, str]] = {}  # by port, the globals that were not hostile
        self.happened[SEVERAL] += len(self.sources) > 1
        self.stories = [self._build_story(seed) for seed in self.seeds]
        self._by_database = {db: story for story in self.stories for db in story.databases}
        self._mode = self._draw.choice(MODES)
        # A comparison of each altered table costs as much as the window.
        self._compares = self._draw.random() < _COMPARED
        self._has_feed = self._mode != "pessimistic"  # a feed does not wait for tables

    def _build_story(self, seed: int) -> Story:
        """A story at one source; both shards are of one family, if possible not of one source."""
        first = seed % len(self.sources)
        turns = [*self.sources[first:], *self.sources[:first]]
        return Story(seed, turns[0], next((one for one in turns[1:] if one.name == turns[0].name), turns[0]))

    def run(self, rounds: int, steps: int) -> list[str]:
        """Run `steps` steps of each story before the feeder starts, and twice in each round.

        The full load runs while the first round's steps do. Returns the differences.
        """
        execute(self.target, *_OWN.split("; "))
        self._let_shards_alter(self._mode == "optimistic")
        with self._connect() as links:
            for story in self.stories:
                story.create(links)
        self._run_stories(steps)
        self._set_hostile_globals()
        places = [{"host": source.host, "port": source.port} for source in self.sources]
        sources = [{"name": f"s{number}", **at, "tracker": at} for number, at in enumerate(places)]
        with FedCluster(self.folder, self.sources[0], sources, pumps=1) as cluster:
            cluster.start_feeder(bool)
            for place in range(rounds):
                self._run_stories(steps)
                self._suffer(cluster, steps)
                if place == rounds - 1:
                    self._finish_stories()
                cluster.follow(*self.sources)
                self._run_windows(cluster)
                self._let_shards_alter(True)
            self._restore_globals()
            return self._find_differences(cluster)

    def _set_hostile_globals(self) -> None:
        for server in (*self.sources, self.target):
            with server.connect() as admin:
                set_variables(admin)
                former = set_hostile_globals(admin, leave=_NOT_HOSTILE)
                self._former.setdefault(server.port, former)

    def _restore_globals(self) -> None:
        for server in (*self.sources, self.target):
            with server.connect() as admin:
                set_variables(admin)
                restore_globals(admin, self._former[server.port])

    def _run_stories(self, steps: int) -> None:
        """Each story's next steps, in a drawn order."""
        turns = list(self.stories)
        self._order.shuffle(turns)
        with self._connect() as links:
            for story in turns:
                story.run(links, steps)

    @contextmanager
    def _connect(self) -> Iterator[Links]:
        """A session at each source, by its port."""
        with ExitStack() as stack:
            yield {one.port: stack.enter_context(closing(one.connect())) for one in self.sources}

    def _let_shards_alter(self, may_alter: bool) -> None:
        for shards in (story.shards for story in self.stories if story.shards is not None):
            shards.may_alter, shards.may_modify = may_alter, bool(self._mode)

    def _finish_stories(self) -> None:
        with self._connect() as links:
            for story in self.stories:
                story.finish(links)

    def _suffer(self, cluster: FedCluster, steps: int) -> None:
        name = self._draw.choice(_ALL_FAULTS)
        self.happened[name] += 1
        if name in (KILLED, PUMP_KILLED):
            kill = kill_feeder if name == KILLED else kill_pump
            kill(cluster, self._draw, lambda: self._run_stories(steps))
            return
        FAULTS[name](self._draw.choice(self.sources), self.target, cluster)
        self._set_hostile_globals()  # a server that starts again has forgotten them
        self._run_stories(steps)

    def _context(self, cluster: FedCluster) -> StageContext:
        to = {"host": self.target.host, "port": self.target.port, "user": "root", "db-type": self.target.name}
        feeds = [{"name": "files", "sink-uri": f"file://{self.folder / 'files'}?protocol=csv", "csv": CSV}]
        # A table that the target refuses leaves the others alone, and is reported at the end.
        lenient = {"on-table-error": "set-aside", "most-set-aside": 1000}
        compares = {} if self._compares else {"verify-after-ddl-rows": 0}
        more: dict[str, Any] = {"shard-mode": self._mode} if self._mode else {}
        routes = [route for story in self.stories if story.shards for route in story.shards.build_routes()]
        replication = cluster.replication(
            target={**to, **lenient, **compares},
            mirror={"enabled": True},
            feed=feeds if self._has_feed else [],
            routes=routes,
            **more,
        )
        return StageContext(replication, "world", _no_spark)

    def _run_windows(self, cluster: FedCluster) -> None:
        until, drawn = cluster.settle(), self._draw.random()
        disturbed = drawn >= _UNDISTURBED
        if disturbed:
            self._run_disturbed(cluster, together=drawn < _UNDISTURBED + _TOGETHER)
        while (self._context(cluster).windows.find_landed_ts() or 0) < until:
            run_window(self._context(cluster))
        if disturbed:
            # A sink of which a window died continues with the next run, even if nothing is new.
            run_window(self._context(cluster))

    def _run_disturbed(self, cluster: FedCluster, *, together: bool) -> None:
        with crashing(self._draw), ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(self._run_or_die, cluster) for _ in range(1 + together)]
        ends = [run.result() for run in runs]
        self.happened[TOGETHER] += together
        self.happened["a window ended"] += sum(ends)

    def _run_or_die(self, cluster: FedCluster) -> bool:
        """Whether a run of the next window came to its end: it may die, or another one may have its place."""
        try:
            run_window(self._context(cluster))
        except (Crash, Transient) as error:
            self.happened[f"a window ended by {type(error).__name__}"] += 1
            return False
        return True

    def _find_differences(self, cluster: FedCluster) -> list[str]:
        context = self._context(cluster)
        audit, ts = Audit(context.paths, context.rules), context.windows.find_landed_ts()
        assert ts is not None
        assert ts == context.windows.find_greatest_hi("mirror")
        aside, feed, mirrors = self._read_aside(), read_feed(self.folder / "files"), read_mirrors(audit, ts)
        refused = {name: why for name, why in aside.items() if not self._is_allowed(name[0], why)}
        found = [f"{'.'.join(name)} is set aside: {why}" for name, why in refused.items()]
        source = self._merge_shards({name: t for one in self.sources for name, t in read_databases(one).items()})
        found += self._write_and_mend(context, source, {**mirrors}, set(aside))
        target = read_databases(self.target)
        for name, table in source.items():
            self.happened["tables"] += 1
            differences = (
                "" if name in aside else self._compare_target(table, target.get(name)),
                self._compare_mirror(table, audit, mirrors.get(name), name, ts),
                self._compare_feed(table, feed.get(name)),
            )
            found += [f"{'.'.join(name)}: {one}" for one in differences if one]
        return found

    def _merge_shards(self, tables: dict[Name, Table]) -> dict[Name, Table]:
        """`tables` by the names at the target, where two shards are one table."""
        for shards in (story.shards for story in self.stories if story.shards is not None):
            one, other = (tables.pop(tuple(table.split("."))) for table in shards.tables)
            assert one.columns == other.columns
            tables[shards.db, shards.target] = replace(one, rows=[*one.rows, *other.rows])
            self.happened[f"shards, {self._mode or 'widest'}"] += 1
        return tables

    def _write_and_mend(
        self, context: StageContext, source: dict[Name, Table], mirrors: dict[Name, MirrorTable], aside: set[Name]
    ) -> list[str]:
        """Another writer changes tables of the target; `verify --fix` must report and mend that, and touch no other."""
        fit = [
            name
            for name, table in source.items()
            if name not in aside and name in mirrors and not mirrors[name].inexact and table.rows
        ]
        chosen = self._draw.sample(fit, min(_WRITTEN, len(fit)))
        if not chosen:
            return []
        written = [write_foreign(self.target, name, self._draw) for name in chosen]
        options = VerifyOptions(tables=tuple(map(".".join, chosen)))
        results = run_verify(context.replication, options, "", None, True, [])
        self.happened.update(kind for kind in written if kind)
        kept = rows(self.target, "SELECT id FROM own.notes ORDER BY id")
        found = [] if kept == [(1,), (2,)] else [f"own.notes of the target has changed: {kept}"]
        if any(written) and [result.stage for result in results] != ["verify", "repair"]:
            found.append(f"{'.'.join(chosen[0])}: verify reports no foreign write: {results}")
        return found

    def _read_aside(self) -> dict[Name, str]:
        """By table, the reasons of those that are set aside at the target."""
        listed = rows(self.target, "SELECT db, tbl, reason FROM tidb_binlog.binlake_aside")
        return {(db, table): reason for db, table, reason in listed}

    def _is_allowed(self, db: str, reason: str) -> bool:
        is_other = self._by_database[db].family != self.target.name
        allowed = (*_SAME_FAMILY, *(_OTHER_FAMILY if is_other else ()))
        return any(re.search(pattern, reason) for pattern in allowed)

    def _compare_target(self, source: Table, target: Table | None) -> str:
        if target is None:
            return "the target has no such table"
        difference = source.find_difference(target.columns, target.rows)
        return f"the target differs: {difference}" if difference else ""

    def _compare_mirror(self, source: Table, audit: Audit, copy: MirrorTable | None, name: Name, ts: int) -> str:
        # The audit reads so much that it answers for some tables only, and for those without a mirror of their own.
        if copy is None or self._order.random() < _AUDITED:
            seen = audit.read_table_as_of(*name, ts)
            copy = MirrorTable(
                seen.columns, [tuple(row[column] for column in seen.columns) for row in seen.rows], seen.inexact
            )
        if copy.inexact:
            self.happened[f"inexact: {copy.inexact}"] += 1
            return ""
        difference = source.find_difference(copy.columns, copy.rows)
        return f"the mirror differs: {difference}" if difference else ""

    def _compare_feed(self, source: Table, copy: FeedTable | None) -> str:
        if not self._has_feed:
            return ""
        if copy is None:
            return "the feed has no such table"
        if copy.count is not None and copy.count != len(source.rows):
            return f"the feed differs: {copy.count} rows, not {len(source.rows)}"
        lacking = Counter(source.spell_comparable(copy.list_written())) - Counter(source.spell_comparable(source.rows))
        return f"the feed differs: {list(lacking)[:3]} ({lacking.total()}) are not at the source" if lacking else ""


def _no_spark() -> NoReturn:
    raise AssertionError("such small windows must not need Spark")
