"""Mirrors take the net changes of several windows at once, and end as if they had taken one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from history import plain
from lakehouse import Lakehouse, Source
from mirrored import power_cut, read_mirrors
from support.mariadb import MariaDb, execute
from support.workload import Col, Workload, integer, text

from binlake.mirror import MirrorVersions
from binlake.rows.schema import mysqltypes as t
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.stages import compact, convert, finalize, merge, mirror
from binlake.spark_jobs.stages.mirror import GatheredWindows, gather

pytestmark = pytest.mark.mariadb
PIECES = 4


class Story:
    """A window that creates tables, then PIECES windows that change their rows; `states`: all rows at each end."""

    def __init__(self, keyless: bool = False) -> None:
        self.workload = w = Workload()
        w.create_database("shop")
        w.create_table("shop", "item", [integer("id"), text("name")], ["id"])
        w.create_table("shop", "pair", [integer("n"), Col("code", t.VARCHAR, 16), text("name")], ["n", "code"])
        w.create_table("shop", "log", [text("what")])
        for n in range(12):
            txn = w.begin().insert("shop", "item", id=n, name=f"item {n}")
            txn.insert("shop", "pair", n=n % 3, code=f"A{n:03}", name="first").commit()
        w.begin().insert("shop", "log", what="new").commit()
        self.ends, self.states = [0], list[Any]()
        self._cut()
        draw = Random(7)
        for piece in range(PIECES):
            for number in range(12):
                self._change(draw, 100 * piece + number)
            if keyless:
                w.begin().insert("shop", "log", what="new").commit()
            self._cut()

    def _change(self, draw: Random, new: int) -> None:
        w = self.workload
        rows, pairs = w.rows["shop", "item"], w.rows["shop", "pair"]
        row, pair = dict(draw.choice(rows)), dict(draw.choice(pairs))
        kind = draw.randrange(4)
        if kind == 0:
            w.begin().insert("shop", "item", id=1000 + new, name="new").commit()
        elif kind == 1:
            w.begin().delete("shop", "item", **row).commit()
            # Its key may come back, in this window or in a later one.
            w.begin().insert("shop", "item", id=row["id"], name=f"again {new}").commit()
        elif kind == 2 and len(rows) > 3:
            w.begin().delete("shop", "item", **row).commit()
        else:
            w.begin().update("shop", "item", row, name=f"v{new}").commit()
        w.begin().update("shop", "pair", pair, code=f"B{new:03}", name=f"v{new}").commit()

    def _cut(self) -> None:
        self.ends.append(self.workload.clock())
        self.states.append({name: plain(rows) for name, rows in self.workload.states().items()})


class Pieces:
    """Windows of a story through the SQL sink, as a run derives them."""

    def __init__(self, story: Story, root: Path, server: MariaDb) -> None:
        execute(server, "DROP DATABASE IF EXISTS shop", "DROP DATABASE IF EXISTS tidb_binlog")
        address = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}
        self.lakehouse = Lakehouse(
            None, root, Source.of_workload(story.workload), {"target": {"db-type": server.name, **address}}
        )
        self.ctx: StageContext = self.lakehouse.context()
        self.windows = [Bounds(lo, hi) for lo, hi in zip(story.ends, story.ends[1:], strict=False)]

    def derive(self) -> Iterator[tuple[Bounds, Any]]:
        """Each window, and what compact has derived of it."""
        for bounds in self.windows:
            self.lakehouse.land_only(bounds.lo, bounds.hi)
            merged = merge.run(self.ctx, bounds)
            compacted = compact.run(self.ctx, bounds, merged.derived)
            converted = convert.run(self.ctx, bounds, compacted.derived)
            yield bounds, compacted.derived
            finalize.run(self.ctx, bounds, converted.derived)

    def gather(self) -> GatheredWindows:
        """Mirror the first window, and join the others."""
        joined: GatheredWindows | None = None
        for bounds, derived in self.derive():
            one = gather(self.ctx, derived)
            if one is None:
                mirror.run(self.ctx, bounds, derived)
            else:
                joined = one if joined is None else joined.join(one)
        assert joined is not None
        return joined


def test_several_windows_in_one_commit_of_each_mirror_equal_the_source(mariadb: MariaDb, tmp_path: Path) -> None:  # 34
    story = Story()
    pieces = Pieces(story, tmp_path, mariadb)
    joined = pieces.gather()
    assert joined.bounds == Bounds(story.ends[1], story.ends[-1])
    path = pieces.ctx.paths.locate_mirror("shop", "item")
    before = DeltaTable(path).version()
    done = mirror.run(pieces.ctx, pieces.windows[-1], joined)
    assert (done.state, done.lo, done.hi) == ("done", *vars(joined.bounds).values())
    assert read_mirrors(pieces.ctx) == story.states[-1]
    assert DeltaTable(path).version() == before + 1
    assert MirrorVersions(pieces.ctx.paths).read_latest()["shop", "item"].hi == story.ends[-1]
    assert mirror.run(pieces.ctx, pieces.windows[-1]).state == "already"


@pytest.mark.parametrize("dies", [(MirrorVersions, "record"), (mirror, "_build_lineage")])
def test_windows_that_were_begun_together_are_ended_together_from_the_lake(
    mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: tuple[Any, str]
) -> None:  # all mirrors are written, and nothing says so
    story = Story()
    pieces = Pieces(story, tmp_path, mariadb)
    joined = pieces.gather()
    with monkeypatch.context() as patch:
        patch.setattr(*dies, power_cut)
        with pytest.raises(ConnectionAbortedError):
            mirror.run(pieces.ctx, pieces.windows[-1], joined)
    versions = [DeltaTable(pieces.ctx.paths.locate_mirror("shop", name)).version() for name in ("item", "pair")]
    done = mirror.run(pieces.ctx, pieces.windows[-1])
    assert (done.lo, done.hi) == (joined.bounds.lo, joined.bounds.hi)
    assert read_mirrors(pieces.ctx) == story.states[-1]
    after = [DeltaTable(pieces.ctx.paths.locate_mirror("shop", name)).version() for name in ("item", "pair")]
    assert after == versions


def test_windows_that_are_not_the_next_ones_are_read_from_the_lake(mariadb: MariaDb, tmp_path: Path) -> None:
    story = Story()
    pieces = Pieces(story, tmp_path, mariadb)
    found = [(bounds, gather(pieces.ctx, derived)) for bounds, derived in pieces.derive()]
    assert [one is None for _, one in found] == [True] + [False] * PIECES
    # The mirrors are behind what is given: the window that was not gathered was not mirrored either.
    assert mirror.run(pieces.ctx, pieces.windows[-1], found[-1][1]).lo == 0
    assert read_mirrors(pieces.ctx) == story.states[-1]


def test_windows_are_not_gathered_where_more_than_the_last_change_counts(mariadb: MariaDb, tmp_path: Path) -> None:
    pieces = Pieces(Story(keyless=True), tmp_path, mariadb)
    assert [gather(pieces.ctx, derived) for _, derived in pieces.derive()] == [None] * (PIECES + 1)


def test_new_rows_alone_are_not_gathered(mariadb: MariaDb, tmp_path: Path) -> None:
    # Adding them costs no more for each window.
    story = Story()
    for n in range(3):
        story.workload.begin().insert("shop", "item", id=5000 + n, name="new").commit()
    story._cut()
    pieces = Pieces(story, tmp_path, mariadb)
    assert [gather(pieces.ctx, derived) is None for _, derived in pieces.derive()][-2:] == [False, True]
