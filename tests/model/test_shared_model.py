"""Two tables of the source in one of the target: a key in both tables is always an error (S4-03, R-15).

Histories by seed: rows are inserted, changed, moved to other keys, deleted, and taken over by the other table; in some
histories a table writes a key that the other one has. The window of that commit must be refused, whichever window the
older row came in. All other windows are applied, and the target equals both tables together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import write_deltalake
from modelerrors import Wrong
from modellog import log_of
from modelwindow import NAME, Converter
from support.mariadb import MariaDb, rows
from support.windows import target_of
from support.workload import Workload, integer, text

from binlake.config import Replication
from binlake.ddl.ddls import build_window_schemas
from binlake.ddl.definitions import Segments
from binlake.errors import BinlakeError, SchemaError
from binlake.lake.paths import LakePaths
from binlake.rows.codec import MutationBatch
from binlake.rules import Rules
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.shared import sharedkeys
from binlake.spark_jobs.shared.sharedkeys import Arrival
from binlake.spark_jobs.shared.sinks import SinkWindow
from binlake.target import apply_window

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(600)]

SEEDS = 16
TABLES = (("s1", "t_1"), ("s2", "t_2"))
_RULES = Rules.of(Replication.model_validate({"name": NAME, "lake": {"path": "x"}, "routes": [
    {"schema-pattern": "s?", "target-schema": "xs"},
    {"schema-pattern": "s?", "table-pattern": "t_*", "target-schema": "xs", "target-table": "t"},
]}))  # fmt: skip


@dataclass
class History:
    """`states`: the rows of both tables after each commit; `clash`: the commit_ts of a key in both, 0 = none."""

    random: Random
    w: Workload = field(default_factory=Workload)
    held: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))
    states: list[tuple[int, dict[int, str]]] = field(default_factory=list)
    clash: int = 0

    def __post_init__(self) -> None:
        for db, name in TABLES:
            self.w.create_database(db)
            self.w.create_table(db, name, [integer("id"), text("name")], ["id"])
        for number in range(self.random.randint(4, 16)):
            self._transaction(f"v{number}")
            if self.clash:
                return

    def _transaction(self, value: str) -> None:
        one = self.random.randrange(2)
        own, other = self.held[one], self.held[1 - one]
        free = [key for key in range(1, 9) if key not in own and key not in other]
        if self.random.random() < 0.12:
            free = sorted(other.keys() - own.keys())
        step = self.random.choice(("insert", "insert", "update", "move", "delete", "take over"))
        open_ = self.w.begin()
        if step == "insert" and free:
            key = self.random.choice(free)
            own[key] = value
            open_.insert(*TABLES[one], id=key, name=value)
        elif step == "take over" and other:
            key = self.random.choice(sorted(other))
            open_.delete(*TABLES[1 - one], id=key, name=other.pop(key)).insert(*TABLES[one], id=key, name=value)
            own[key] = value
        elif step in ("update", "move", "delete") and own:
            old = self.random.choice(sorted(own))
            before, key = own.pop(old), self.random.choice(free) if step == "move" and free else old
            if step == "delete":
                open_.delete(*TABLES[one], id=old, name=before)
            else:
                own[key] = value
                open_.update(*TABLES[one], {"id": str(old), "name": before}, id=key, name=value)
        else:
            return
        commit_ts = open_.commit()
        self.clash = commit_ts if self.held[0].keys() & self.held[1].keys() else 0
        self.states.append((commit_ts, {**self.held[0], **self.held[1]}))


class Shards:
    """The windows of a history, each checked by the rule of shared keys and then applied. Raises Wrong."""

    def __init__(self, server: MariaDb, root: Path, seed: int) -> None:
        self.server, self.target, self.random = server, target_of(server), Random(f"windows {seed}")
        self.history = History(Random(f"shards {seed}"))
        self.log = log_of(self.history.w)
        self.converter = Converter(self.log, self.random, _RULES)
        self.paths = LakePaths(str(root / str(seed)))

    def run(self) -> bool:
        """Run all windows; True when a key in both tables was refused."""
        lo, ends = 0, [ts for ts, _ in self.history.states]
        while ends and lo < ends[-1]:
            later = [ts for ts in ends if ts > lo]
            hi = later[min(int(self.random.expovariate(0.5)), len(later) - 1)]
            is_clash = lo < self.history.clash <= hi
            try:
                self._judge(lo, hi)
            except SchemaError as error:
                if not is_clash or "two tables of the source write one key" not in error.message:
                    raise
                return True
            if is_clash:
                raise Wrong(f"a key of both tables at {self.history.clash} passed in {lo}-{hi}")
            statements = self.converter.convert(lo, hi, self.target, "safe")
            apply_window(self.target, statements.manifest, statements)
            wanted = next(held for ts, held in self.history.states if ts == hi)
            present = {int(key): str(name) for key, name in rows(self.server, "SELECT id, name FROM xs.t")}
            if present != wanted:
                raise Wrong(f"at {hi}: {present}, not {wanted}")
            lo = hi
        return False

    def _judge(self, lo: int, hi: int) -> None:
        """As in compact: inside the window by the changes' order, across windows by target and lake."""
        own = [row for row in self.log.rows if lo < row[0] <= hi]
        jobs = [(ts, job) for ts, job in self.log.jobs if lo < ts <= hi]
        ddls = [ddl for ddl in self.log.ddls if lo < ddl.commit_ts <= hi]
        schemas = build_window_schemas(self.converter._schema(lo), ddls, jobs, lo)
        batch = MutationBatch(_RULES.route)
        for commit_ts, start_ts, payload, _ in own:
            batch.add(payload, commit_ts, start_ts, schemas.find_schema_at(commit_ts))
        made = batch.take()
        lines = tuple(self.converter.logged(lo, hi)[0])
        definitions, base = self.converter.definitions(lo, list(lines)), self.converter._targets(lo)
        starts = tuple(line.since for line in lines if line.opens_segment)
        window = SinkWindow(Bounds(lo, hi), lines, Segments(lo, hi, starts), definitions, base, (0, 0))
        arrivals = list(_arrivals(made.to_pylist(maps_as_pydicts="strict")))
        unknown = sharedkeys._find_unexplained(
            SimpleNamespace(paths=self.paths, windows=None, rules=_RULES), window, self.target, arrivals
        )  # type: ignore[arg-type]
        if unknown:
            raise Wrong(f"the lake knows nothing of {unknown}")
        if made.num_rows:
            write_deltalake(self.paths.locate_table("mutation"), made, mode="append", partition_by=["commit_date"])


def _arrivals(changes: list[dict[str, Any]]) -> Iterator[Arrival]:
    last: dict[str, tuple[str, bool, int]] = {}
    for row in sorted(changes, key=lambda one: (one["commit_ts"], one["start_ts"], one["seq"])):
        source = f"{row['source_db']}.{row['source_table']}"
        moved = row["new_key"] is not None
        steps = [(row["key"], row["op"] != "delete" and not moved, row["op"] == "insert")]
        steps += [(row["new_key"], True, True)] if moved else []
        for key, leaves, adds in steps:
            before = last.get(key)
            if before is not None and before[1] and before[0] != source:
                raise SchemaError("two tables of the source write one key of their common target", where={"key": key})
            if before is None and adds:
                yield Arrival("xs", "t", ("id",), key, source, row["table_id"], row["commit_ts"])
            last[key] = source, leaves, row["commit_ts"]


def brought_down(server: MariaDb, root: Path) -> int:
    """How many histories were refused for a key in both tables. Raises Wrong, or an unexplained error."""
    refused = 0
    for seed in range(SEEDS):
        server.wipe()
        try:
            refused += Shards(server, root, seed).run()
        except (Wrong, BinlakeError) as error:
            error.add_note(f"seed {seed}")
            raise
    return refused


def test_a_key_in_two_tables_is_refused_and_all_other_changes_are_applied(mariadb: MariaDb, tmp_path: Path) -> None:
    # S4-03, R-15
    refused = brought_down(mariadb, tmp_path)
    assert 3 < refused < SEEDS - 3


def test_the_model_finds_an_unchecked_owner_of_a_key(
    mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S4-03: without the rule across windows the later row wins silently
    monkeypatch.setattr(sharedkeys, "_require_owner", lambda *_: None)
    with pytest.raises(Wrong, match="a key of both tables"):
        brought_down(mariadb, tmp_path)
