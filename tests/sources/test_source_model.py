"""Drawn MySQL and MariaDB sources: what a source has, the target, the mirrors and a feed have as well (C-01, S4-02).

A failure names the database `s<seed>`. To repeat it, set BINLAKE_WORLD_SEEDS=<seed>:1 and choose the pair with `-k`.
The faults of a world are drawn from its first seed.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults import FAULTS
from support.mariadb import MariaDb, MySql, mariadb_in_memory, mysql_in_memory
from world import World

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e, pytest.mark.timeout(900)]

SEEDS, SOAKED = 5, 25
"""Stories of a world in `make test`, and in `make soak`."""


@dataclass(frozen=True)
class Families:
    """The families of a world's source and target."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"

    @contextmanager
    def start(self) -> Iterator[tuple[MariaDb, MariaDb]]:
        """A source and a target."""
        with ExitStack() as stack:
            source = (
                mysql_in_memory(MySql.list_source_options())
                if self.source == "mysql"
                else mariadb_in_memory(MariaDb.list_source_options())
            )
            target = mysql_in_memory() if self.target == "mysql" else mariadb_in_memory()
            yield stack.enter_context(source), stack.enter_context(target)


PAIRS = [Families(source, target) for source in ("mariadb", "mysql") for target in ("mariadb", "mysql")]


def run_world(folder: Path, families: Families, seeds: range) -> Counter[str]:
    """Run one world, and return what happened. Fails with the differences and the statements of their stories."""
    with families.start() as (source, target):
        world = World(folder, source, target, seeds)
        differences = world.run(2, 6)
    if differences:
        wrong = [story for story in world.stories if any(f"{story.db}." in one for one in differences)]
        for story in wrong[:3]:
            print(f"-- {story.db}", *story.ran, sep=";\n")
        pytest.fail("\n".join(differences[:20]), pytrace=False)
    return world.happened


def choose_seeds(families: Families, count: int) -> range:
    """The seeds of a world: those of BINLAKE_WORLD_SEEDS=FIRST:COUNT, or `count` that no other pair has."""
    if given := os.environ.get("BINLAKE_WORLD_SEEDS"):
        first, count = map(int, given.split(":"))
        return range(first, first + count)
    first = 10_000 * PAIRS.index(families)
    return range(first, first + count)


@pytest.mark.parametrize("families", PAIRS, ids=str)
def test_target_mirrors_and_feed_equal_a_drawn_source(families: Families, tmp_path: Path) -> None:
    seeds = choose_seeds(families, SEEDS)
    assert run_world(tmp_path, families, seeds)["tables"] >= len(seeds)


@pytest.mark.soak
@pytest.mark.timeout(86_400)
@pytest.mark.parametrize("families", PAIRS, ids=str)
def test_many_drawn_sources(families: Families, tmp_path: Path) -> None:
    seeds = choose_seeds(families, int(os.environ.get("WORLD_SEEDS", "400")) // len(PAIRS))
    happened = Counter[str]()
    for first in range(seeds.start, seeds.stop, SOAKED):
        folder = tmp_path / str(first)
        folder.mkdir()
        happened += run_world(folder, families, range(first, min(first + SOAKED, seeds.stop)))
        shutil.rmtree(folder)
    print(dict(happened))
    assert happened.keys() >= FAULTS
