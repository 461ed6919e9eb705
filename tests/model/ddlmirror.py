"""The mirrors of a `World`, window by window through delta-rs, compared with the model's truth at each window's end.

No Spark: net changes come from the core (`compute_net_changes`), and the pipeline's `apply_component` applies them. A
run may die between two commits; then the next one repeats the window, as the stage `mirror` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from ddlrun import rules_of
from ddlworld import World
from deltalake import DeltaTable
from modelerrors import Crash, Wrong
from modelwindow import Converter

from binlake.changes.net import RowEvent, compute_net_changes
from binlake.ddl.definitions import SegmentTable, derive_key_defaults
from binlake.lake.paths import LakePaths
from binlake.mirror import ComponentPlan, MirrorState, apply_component, plan_mirrors
from binlake.mirror.rows import read_mirror_texts
from binlake.rows.schema import Action, TableDef

_MAP = pa.map_(pa.string(), pa.string())
_NET = pa.schema([
    ("op", pa.string()), ("before", _MAP), ("after", _MAP), ("copies", pa.int64()), ("last_commit_ts", pa.int64()),
])  # fmt: skip
_LOSES_ROWS = {Action.DROP_PARTITION, Action.TRUNCATE_PARTITION}
Events = dict[tuple[str, str], list[RowEvent]]


class Mirrors:
    """Mirrors under `root` and their records; `seen` counts the comparisons by kind."""

    def __init__(self, world: World, root: Path, random: Random) -> None:
        self._world, self._random, self._paths = world, random, LakePaths(str(root))
        self._converter = Converter(world, random, rules_of(world))
        self._known: dict[tuple[str, str], MirrorState] = {}
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        """Process all windows, comparing after each. Raises Wrong."""
        lo, ends = 0, self._world.ends
        while lo < ends[-1]:
            later = [ts for ts in ends if ts > lo]
            hi = later[min(int(self._random.expovariate(0.15)), len(later) - 1)]
            self._window(lo, hi)
            self._compare(hi)
            lo = hi

    def _window(self, lo: int, hi: int) -> None:
        ddls, events = self._converter.logged(lo, hi)
        plan = plan_mirrors(lo, hi, self._converter.definitions(lo, ddls), ddls, list(events), self._known)
        if self._random.random() < 0.3:
            for component in plan.components:
                with suppress(Crash):
                    self._apply(component, events, dies=True)
            self.seen["died"] += 1
        done = [self._apply(component, events) for component in plan.components]
        for version in (one for versions in done for one in versions):
            self._known[version.db, version.table] = version

    def _apply(self, component: ComponentPlan, events: Events, *, dies: bool = False) -> list[MirrorState]:
        net = list(_net(component, events))
        left = self._random.randint(0, len(net)) if dies else len(net)

        def batches() -> Iterator[tuple[SegmentTable, pa.Table]]:
            yield from net[:left]
            if left < len(net):
                raise Crash

        return apply_component(component, self._paths, 30, batches()).versions

    def _compare(self, hi: int) -> None:
        truth = self._world.at(hi)
        tables = {(table.db, table.name): table for table in self._converter.tables(hi)}
        present = {name for name, version in self._known.items() if not version.dropped}
        if not present <= truth.keys():
            raise Wrong(f"at {hi}: mirrors of {sorted(present - truth.keys())}, which do not exist")
        for name, (columns, expected) in truth.items():
            version = self._known.get(name)
            if version is None or version.dropped:
                raise Wrong(f"at {hi}: {name} has no mirror: {version}")
            shown = self._rows(tables[name], columns, version)
            if not self._is_right(tables[name], Counter(expected), Counter(shown), version.inexact, hi):
                raise Wrong(f"at {hi}: the mirror of {name} ({version.inexact or 'exact'}) has {shown}, not {expected}")

    def _is_right(self, table: TableDef, expected: Counter[Any], shown: Counter[Any], inexact: str, hi: int) -> bool:
        """Whether the mirror equals the truth, also after partitions of `table` were emptied."""
        emptied = any(job.table_id == table.id and job.action in _LOSES_ROWS
                      for ts, job in self._world.jobs if ts <= hi and job.state != 3)  # fmt: skip
        self.seen["emptied" if emptied else "exact"] += 1
        return not inexact and expected == shown

    def _rows(self, table: TableDef, columns: tuple[str, ...], version: MirrorState) -> list[tuple[str | None, ...]]:
        delta = DeltaTable(self._paths.locate_mirror(version.db, version.table), version=version.delta_version)
        texts = read_mirror_texts(table, delta.to_pyarrow_dataset().to_table())
        if tuple(texts) != columns:
            raise Wrong(f"the mirror of {table.db}.{table.name} has the columns {tuple(texts)}, not {columns}")
        return sorted(zip(*texts.values(), strict=True), key=repr)


def _net(component: ComponentPlan, events: Events) -> Iterator[tuple[SegmentTable, pa.Table]]:
    for (segment, db, name), table in sorted(component.tables.items(), key=lambda item: item[0]):
        since, until = component.segments.find_bounds(segment)
        own = [event for event in events[db, name] if since <= event.commit_ts < until]
        rows = [
            {"op": net.op, "before": _pairs(net.before), "after": _pairs(net.after), "copies": net.copies,
             "last_commit_ts": net.last_commit_ts}
            for net in compute_net_changes(own, table.find_identity(), derive_key_defaults(table), strict=True)
        ]  # fmt: skip
        if rows:
            yield SegmentTable(segment, db, name), pa.Table.from_pylist(rows, schema=_NET)


def _pairs(image: Any) -> list[tuple[str, str | None]] | None:
    return None if image is None else list(image.items())
