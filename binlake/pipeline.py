"""The one list of the stages of a window, with all facts of each: DAG factory, CLI and the fused layout read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Stage:
    """One stage: `name`, a line for people (`summary`), and the facts of it that others go by.

    `after`: the stages it waits for, by `task`; `sink`: the one it serves (None: the lake itself); `bounds_from`: the
    stage whose window it works on (None: it proposes one); `lock`: the lake's lock that it takes (empty: none);
    `reads`, `writes`: tables of the lake; `counts`: the one of `writes` whose rows it counts as its own; `needs_spark`:
    it may ask for a session; `optional`: it is there where the replication asks for it, and nothing waits for it.
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
        """The feed whose stage it is; empty for the others."""
        return feed_of_sink(self.sink)

    @property
    def task(self) -> str:
        """What it is called among all stages of a replication."""
        return task_name(self.name, self.sink)


FEED = "feed"
"""The sink of stages that are there once for each feed."""

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
        "one total order, filtered, routed, decoded with the schema of its place",
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
        "net change per key and segment",
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
        "SQL of the target's dialect by segment, phase and batch",
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
        "compare rows of the applied window with the lake, and with the source where it can be asked",
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
        "typed Delta replicas of the source's tables",
        after=("merge",),
        sink="mirror",
        bounds_from="land",
        lock="mirror",
        reads=("mutation", "ddl"),
    ),
    Stage(
        "encode",
        "row changes as messages of a feed, in commit order",
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
        "the messages of a feed to its topics, each once",
        after=("encode",),
        sink=FEED,
        bounds_from="encode",
        reads=("feed",),
        needs_spark=False,
    ),
)

BY_NAME = {stage.name: stage for stage in STAGES}

ENDED = ("done", "already")
"""A stage that ended so did its window, or found it done."""
STOPPED = frozenset({"blocked", "waiting", "skipped"})
"""A stage that ended so has nothing for the stages after it; its task is green."""


def feed_sink(name: str) -> str:
    """What the sink of the feed `name` is called in events, groups and paths."""
    return f"{FEED}.{name}"


def feed_of_sink(sink: str | None) -> str:
    """The feed of `sink`; empty for the others."""
    return sink.removeprefix(f"{FEED}.") if sink is not None and sink.startswith(f"{FEED}.") else ""


def task_name(stage: str, sink: str | None) -> str:
    """What the stage `stage` of `sink` is called among all stages of a replication."""
    feed = feed_of_sink(sink)
    return f"{stage}-{feed}" if feed else stage


def stages_for(*, sql: bool, mirror: bool, feeds: Sequence[str] = (), validated: bool = False) -> tuple[Stage, ...]:
    """The stages of a replication that has a SQL target, a mirror and `feeds`, or some of them.

    Those of a feed are there once for each, with its sink. `validated`: the optional ones, too.
    """
    wanted = {None} | ({"sql"} if sql else set()) | ({"mirror"} if mirror else set())
    own = [stage for stage in STAGES if stage.sink in wanted and (validated or not stage.optional)]
    return (*own, *(_of_feed(stage, name) for name in feeds for stage in STAGES if stage.sink == FEED))


def _of_feed(stage: Stage, name: str) -> Stage:
    """`stage` for one feed: what it names of its own sink is that feed's."""
    sink = feed_sink(name)
    of_feeds = {other.name for other in STAGES if other.sink == FEED}
    after = tuple(task_name(before, sink) if before in of_feeds else before for before in stage.after)
    bounds = task_name(stage.bounds_from, sink) if stage.bounds_from in of_feeds else stage.bounds_from
    lock = feed_lock(name) if stage.lock else ""
    return replace(stage, sink=sink, after=after, bounds_from=bounds, lock=lock)


def feed_lock(name: str) -> str:
    """The lock of the lake under which the feed `name` is encoded."""
    return f"{FEED}-{name}"


def locks_of(stages: Iterable[Stage]) -> tuple[str, ...]:
    """The locks of the lake that `stages` take, each once."""
    return tuple(dict.fromkeys(stage.lock for stage in stages if stage.lock))


def names_of_sink(sink: str) -> tuple[str, ...]:
    """The stages that a sink cannot do without, in order."""
    return tuple(stage.name for stage in STAGES if stage.sink == sink and not stage.optional)


def lock_of_table(table: str) -> str:
    """The lock under which a stage writes the lake's `table`. Raises KeyError."""
    return {name: stage.lock for stage in STAGES for name in stage.writes}[table]
