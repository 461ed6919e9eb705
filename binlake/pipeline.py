"""The stages of a window and what each waits for: the DAG factory, the CLI and the fused layout read this list.

Other facts of a stage (its locks, whether it needs Spark, where its bounds come from) stand where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage: `name`, the stages it waits for, the `sink` it serves (None: the lake itself), a line for people."""

    name: str
    after: tuple[str, ...]
    sink: str | None
    summary: str


STAGES: tuple[Stage, ...] = (
    Stage("plan", (), None, "propose the next window (lo, hi] from the watermarks; name who blocks"),
    Stage("land", ("plan",), None, "pull the window, prove it complete, fetch its DDL jobs, seal the manifest"),
    Stage("merge", ("land",), None, "one total order, filtered, routed, decoded with the schema of its place"),
    Stage("compact", ("merge",), "sql", "net change per key and segment"),
    Stage("convert", ("compact",), "sql", "SQL of the target's dialect by segment, phase and batch"),
    Stage("finalize", ("convert",), "sql", "apply under the fence, write the ledger, advance the checkpoint"),
    Stage("mirror", ("merge",), "mirror", "typed Delta replicas of the source's tables"),
)

BY_NAME = {stage.name: stage for stage in STAGES}

ENDED = ("done", "already")
"""A stage that ended so did its window, or found it done."""
STOPPED = frozenset({"blocked", "waiting", "skipped"})
"""A stage that ended so has nothing for the stages after it; its task is green."""


def stages_for(*, sql: bool, mirror: bool) -> tuple[Stage, ...]:
    """The stages of a replication that has a SQL target, a mirror, both or neither."""
    wanted = {None} | ({"sql"} if sql else set()) | ({"mirror"} if mirror else set())
    return tuple(stage for stage in STAGES if stage.sink in wanted)
