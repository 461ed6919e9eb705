"""The only list of a window's stages and of its sinks: the DAG factory, the CLI, pages and the runner read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any


def _always(_: Any) -> bool:
    return True


@dataclass(frozen=True)
class Stage:
    """One stage: `name`, a line for people (`summary`), and the facts that other code uses.

    `after`: the stages it waits for, by `task`; `sink`: the sink it serves (None: the lake itself); `bounds_from`: the
    stage whose window it processes (None: it proposes one); `lock`: the lake's lock that it takes (empty: none);
    `reads`, `writes`: tables of the lake; `counts`: the table of `writes` whose rows it counts as its result;
    `needs_spark`: it may need a Spark session; `optional`: no stage waits for it, and the sink's position does not
    depend on it; `keeps_versions`: its events have the versions of the tables that it wrote, so that a lost commit
    is noticed; `is_in`: whether a Replication that has the sink has the stage.
    """

    name: str
    summary: str
    after: tuple[str, ...] = ()
    sink: str | None = None
    bounds_from: str | None = None
    lock: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    counts: str = ""
    needs_spark: bool = True
    optional: bool = False
    keeps_versions: bool = False
    is_in: Callable[[Any], bool] = _always

    @property
    def feed(self) -> str:
        """The feed of the stage; empty for stages without a feed."""
        return parse_feed_sink(self.sink)

    @property
    def task(self) -> str:
        """The stage's name, unique in a replication."""
        return name_task(self.name, self.sink)


FEED = "feed"
"""The name of the kind of sink of which a replication has any number."""


@dataclass(frozen=True)
class Sink:
    """A place that takes the lake's windows at its own pace, and all that other code asks of it; also the lake itself.

    `name`: in events and in Stage.sink; `label`: for people, as in "the target"; `moved_by`: the stage whose end moves
    the sink's position; `stages`: in order; `is_in`: whether a Replication has it (this module is below
    `binlake.config`); `holds_tables`: it has the source's tables, so that the replication's asset stands for them.
    """

    name: str
    label: str
    moved_by: str
    stages: tuple[Stage, ...]
    is_in: Callable[[Any], bool] = _always
    holds_tables: bool = False

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Its stages by name; those of a feed without the feed."""
        return tuple(stage.name for stage in self.stages)

    def list_of(self, replication: Any) -> tuple[Sink, ...]:
        """The sinks of this kind that a Replication has, with the stages that each has there."""
        if not self.is_in(replication):
            return ()
        return (replace(self, stages=tuple(stage for stage in self.stages if stage.is_in(replication))),)


class FeedSinks(Sink):
    """The feeds of a replication: each is a sink, with its own copy of the stages, its own lock and its own name."""

    def list_of(self, replication: Any) -> tuple[Sink, ...]:
        """One for each section `[[feed]]`."""
        return tuple(self.bind(feed.name) for feed in replication.feed)

    def bind(self, feed: str) -> Sink:
        """The sink of one feed: the stages and the lock that its stages refer to are those of the feed."""
        sink, own = name_feed_sink(feed), {stage.name for stage in self.stages}
        stages = tuple(
            replace(
                stage,
                sink=sink,
                after=tuple(name_task(before, sink) if before in own else before for before in stage.after),
                bounds_from=name_task(stage.bounds_from, sink) if stage.bounds_from in own else stage.bounds_from,
                lock=name_feed_lock(feed) if stage.lock else "",
            )
            for stage in self.stages
        )
        return replace(self, name=sink, label=label_sink(sink), stages=stages)


LAKE = Sink(
    "",
    "lake",
    "land",
    (
        Stage(
            "plan",
            "propose the next window (lo, hi] from the watermarks; name the pumps that block it",
            needs_spark=False,
        ),
        Stage(
            "land",
            "pull the window, prove it complete, fetch its DDL jobs, seal the manifest",
            after=("plan",),
            bounds_from="plan",
            lock="landing",
            writes=("binlog", "schema_change"),
            keeps_versions=True,
        ),
        Stage(
            "merge",
            "put changes into one total order; filter, route and decode them with the schema at their commit_ts",
            after=("land",),
            # land may lower the hi of plan.
            bounds_from="land",
            lock="merge",
            reads=("binlog", "schema_change"),
            writes=("mutation", "ddl"),
            counts="mutation",
            keeps_versions=True,
        ),
    ),
)
SQL = Sink(
    "sql",
    "target",
    "finalize",
    (
        Stage(
            "compact",
            "reduce the changes of each key to one per segment",
            after=("merge",),
            sink="sql",
            bounds_from="land",
            lock="sql",
            reads=("mutation", "ddl"),
            writes=("change",),
            counts="change",
        ),
        Stage(
            "convert",
            "write SQL in the target's dialect, by segment, phase and batch",
            after=("compact",),
            sink="sql",
            # compact may widen lo to the target's checkpoint.
            bounds_from="compact",
            lock="sql",
            reads=("change", "mutation", "ddl"),
            writes=("statement",),
        ),
        Stage(
            "finalize",
            "apply under the fence, write the ledger, advance the checkpoint",
            after=("convert",),
            sink="sql",
            bounds_from="compact",
            reads=("statement",),
            needs_spark=False,
        ),
        Stage(
            "validate",
            "compare rows of the applied window with the lake, and with the source if it can be queried",
            after=("finalize",),
            sink="sql",
            bounds_from="compact",
            lock="validation",
            reads=("mutation", "ddl"),
            needs_spark=False,
            optional=True,
            is_in=lambda replication: replication.validation.mode != "off",
        ),
    ),
    is_in=lambda replication: replication.target is not None,
    holds_tables=True,
)
MIRROR = Sink(
    "mirror",
    "mirrors",
    "mirror",
    (
        Stage(
            "mirror",
            "update the typed Delta replicas of the source's tables",
            after=("merge",),
            sink="mirror",
            bounds_from="land",
            lock="mirror",
            reads=("mutation", "ddl"),
            keeps_versions=True,
        ),
    ),
    is_in=lambda replication: replication.mirror.enabled,
    holds_tables=True,
)
FEEDS = FeedSinks(
    FEED,
    "feed",
    "publish",
    (
        Stage(
            "encode",
            "encode row changes as messages of a feed, in commit order",
            after=("merge",),
            sink=FEED,
            bounds_from="land",
            lock="feed",
            reads=("mutation", "ddl"),
            writes=("feed",),
            counts="feed",
        ),
        Stage(
            "publish",
            "publish the messages of a feed to its topics, each once",
            after=("encode",),
            sink=FEED,
            bounds_from="encode",
            reads=("feed",),
            needs_spark=False,
        ),
    ),
)

SINKS: dict[str, Sink] = {}
"""All kinds of sinks by name, in the order in which their stages are listed."""
BY_NAME = {stage.name: stage for stage in LAKE.stages}
"""All stages by name, in order: those of the lake, then those of each sink."""
STAGES = BY_NAME.values()


def register(sink: Sink) -> None:
    """Add a kind of sink: its stages, tasks, locks, commands, status and charts follow from it.

    Each stage runs as `run` of the module `binlake.spark_jobs.stages.STAGE`.
    """
    SINKS[sink.name] = sink
    BY_NAME.update({stage.name: stage for stage in sink.stages})


for _sink in (SQL, MIRROR, FEEDS):
    register(_sink)


def list_places() -> tuple[Sink, ...]:
    """The lake, then all kinds of sinks."""
    return (LAKE, *SINKS.values())


def label_sink(sink: str | None) -> str:
    """What people call the sink of a stage or event; each feed by its name, what belongs to no sink the lake."""
    if not sink:
        return LAKE.label
    if feed := parse_feed_sink(sink):
        return f"feed {feed}"
    return SINKS[sink].label


ENDED = ("done", "already")
"""Results of a stage that has processed its window, now or earlier."""
STOPPED = frozenset({"blocked", "waiting", "skipped"})
"""Results of a stage that leaves nothing for later stages to do; its task succeeds."""


def name_feed_sink(name: str) -> str:
    """The name of the feed's sink in events, groups and paths."""
    return f"{FEED}.{name}"


def parse_feed_sink(sink: str | None) -> str:
    """The feed of `sink`; empty if the sink is not a feed."""
    return sink.removeprefix(f"{FEED}.") if sink is not None and sink.startswith(f"{FEED}.") else ""


def name_task(stage: str, sink: str | None) -> str:
    """The name of the stage `stage` of `sink`, unique in a replication."""
    feed = parse_feed_sink(sink)
    return f"{stage}-{feed}" if feed else stage


def name_feed_lock(name: str) -> str:
    """The lake's lock under which the feed `name` is encoded."""
    return f"{FEED}-{name}"


def list_locks(stages: Iterable[Stage]) -> tuple[str, ...]:
    """The lake's locks that `stages` take, without duplicates."""
    return tuple(dict.fromkeys(stage.lock for stage in stages if stage.lock))


def list_required_stages(sink: str) -> tuple[str, ...]:
    """The stages that a sink requires, in order."""
    return tuple(stage.name for stage in SINKS[sink].stages if not stage.optional)


def list_stages_with_versions() -> tuple[str, ...]:
    """The stages whose events say whether a table has lost a commit."""
    return tuple(stage.name for stage in STAGES if stage.keeps_versions)


def look_up_lock(table: str) -> str:
    """The lock under which a stage writes the lake's `table`. Raises KeyError."""
    return {name: stage.lock for stage in STAGES for name in stage.writes}[table]
