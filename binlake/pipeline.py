"""The only list of a window's stages and of its sinks: the DAG factory, the CLI, pages and the runner read it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Stage:
    """One stage: `name`, a line for people (`summary`), and the facts that other code uses.

    `after`: the stages it waits for, by `task`; `sink`: the sink it serves (None: the lake itself); `bounds_from`: the
    stage whose window it processes (None: it proposes one); `lock`: the lake's lock that it takes (empty: none);
    `reads`, `writes`: tables of the lake; `counts`: the table of `writes` whose rows it counts as its result;
    `needs_spark`: it may need a Spark session; `optional`: only replications that configure it have it, and no stage
    waits for it.
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

    @property
    def feed(self) -> str:
        """The feed of the stage; empty for stages without a feed."""
        return parse_feed_sink(self.sink)

    @property
    def task(self) -> str:
        """The stage's name, unique in a replication."""
        return name_task(self.name, self.sink)


FEED = "feed"
"""The sink of stages that exist once for each feed."""

STAGES: tuple[Stage, ...] = (
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
    ),
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
    ),
    Stage(
        "mirror",
        "update the typed Delta replicas of the source's tables",
        after=("merge",),
        sink="mirror",
        bounds_from="land",
        lock="mirror",
        reads=("mutation", "ddl"),
    ),
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
)

BY_NAME = {stage.name: stage for stage in STAGES}


@dataclass(frozen=True)
class WindowPlace:
    """Where rows arrive: the lake, or a sink, which takes the lake's windows at its own pace.

    `name`: in events and in Stage.sink; `label`: for people, as in "the target"; `moved_by`: the stage whose end moves
    the place's position.
    """

    name: str
    label: str
    moved_by: str


LAKE = WindowPlace("", "lake", "land")
SINKS = (
    WindowPlace("sql", "target", "finalize"),
    WindowPlace("mirror", "mirrors", "mirror"),
    WindowPlace(FEED, "feed", "publish"),
)
"""A further sink needs its line here, its stages above, and its section in Replication.list_stages."""


def label_sink(sink: str | None) -> str:
    """What people call the sink of a stage or event; each feed by its name, what belongs to no sink the lake."""
    if not sink:
        return LAKE.label
    if feed := parse_feed_sink(sink):
        return f"feed {feed}"
    return next(place.label for place in SINKS if place.name == sink)


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


def select_stages(sinks: Collection[str], *, feeds: Sequence[str] = (), validated: bool = False) -> tuple[Stage, ...]:
    """The stages of a replication with these `sinks`, by name, and these `feeds`.

    Each feed has its own copy of the feed stages, with its sink. `validated`: include the optional stages.
    """
    stages = [stage for stage in STAGES if stage.sink in {None, *sinks} and (validated or not stage.optional)]
    return (*stages, *(_bind_to_feed(stage, name) for name in feeds for stage in STAGES if stage.sink == FEED))


def _bind_to_feed(stage: Stage, name: str) -> Stage:
    """A copy of `stage` for one feed: the sink, stages and lock that it refers to are those of the feed."""
    sink = name_feed_sink(name)
    feed_stages = {other.name for other in STAGES if other.sink == FEED}
    after = tuple(name_task(before, sink) if before in feed_stages else before for before in stage.after)
    bounds = name_task(stage.bounds_from, sink) if stage.bounds_from in feed_stages else stage.bounds_from
    lock = name_feed_lock(name) if stage.lock else ""
    return replace(stage, sink=sink, after=after, bounds_from=bounds, lock=lock)


def name_feed_lock(name: str) -> str:
    """The lake's lock under which the feed `name` is encoded."""
    return f"{FEED}-{name}"


def list_locks(stages: Iterable[Stage]) -> tuple[str, ...]:
    """The lake's locks that `stages` take, without duplicates."""
    return tuple(dict.fromkeys(stage.lock for stage in stages if stage.lock))


def list_required_stages(sink: str) -> tuple[str, ...]:
    """The stages that a sink requires, in order."""
    return tuple(stage.name for stage in STAGES if stage.sink == sink and not stage.optional)


def look_up_lock(table: str) -> str:
    """The lock under which a stage writes the lake's `table`. Raises KeyError."""
    return {name: stage.lock for stage in STAGES for name in stage.writes}[table]
