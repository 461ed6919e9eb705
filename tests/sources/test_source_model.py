"""Drawn MySQL and MariaDB sources: what a source has, the target, the mirrors and a feed have as well (C-01, S4-02).

A failure names the database `s<seed>`, and what repeats its story alone in the same test:
BINLAKE_WORLD_SEEDS=FIRST:COUNT:WORLD. A world's faults and settings are drawn from WORLD, its first seed.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from support.mariadb import MariaDb, MySql, mariadb_in_memory, mysql_in_memory
from world import HAPPENS, World

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e, pytest.mark.timeout(900)]

SEEDS, SOAKED = 8, 75
"""Stories of a world in `make test`, and in `make soak`."""
STEPS, SOAKED_STEPS = 1, 2
"""Steps of a story at a time."""


@dataclass(frozen=True)
class Families:
    """The families of a world's (first) source and its target."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"

    @contextmanager
    def start(self, world: int) -> Iterator[tuple[list[MariaDb], MariaDb]]:
        """The sources, of which a drawn share of worlds has two, and a target."""
        second = Random(f"sources {world}").choice(_SECOND)
        with ExitStack() as stack:
            sources = [stack.enter_context(_SOURCES[one]()) for one in (self.source, second) if one]
            yield sources, stack.enter_context(mysql_in_memory() if self.target == "mysql" else mariadb_in_memory())


_SOURCES: Mapping[str, Callable[[], AbstractContextManager[MariaDb]]] = {
    "mariadb": lambda: mariadb_in_memory(MariaDb.list_source_options()),
    "mysql": lambda: mysql_in_memory(MySql.list_source_options()),
}
_SECOND = ("", "", "mariadb", "mysql")
"""The family of the second source, '' for none."""
PAIRS = [Families(source, target) for source in ("mariadb", "mysql") for target in ("mariadb", "mysql")]


@dataclass(frozen=True)
class Seeds:
    """The stories of a world, and what its faults and settings are drawn from."""

    stories: range
    world: int


def run_world(folder: Path, families: Families, seeds: Seeds, steps: int) -> Counter[str]:
    """Run one world, and return what happened. Fails with the differences and the statements of their stories."""
    with families.start(seeds.world) as (sources, target):
        world = World(folder, sources, target, seeds.stories, seeds.world)
        differences = world.run(2, steps)
    if differences:
        text = "\n".join(differences)
        wrong = [story for story in world.stories if any(f"{db}." in text for db in story.databases)]
        for story in wrong[:3]:
            print(f"-- {story.db}: BINLAKE_WORLD_SEEDS={story.db[1:]}:1:{seeds.world}", *story.ran, sep=";\n")
        pytest.fail("\n".join(differences[:20]), pytrace=False)
    return world.happened


def choose_worlds(families: Families, count: int) -> list[Seeds]:
    """Worlds of BINLAKE_WORLD_SEEDS=FIRST:COUNT or FIRST:COUNT:WORLD; or of `count` stories that no other pair has."""
    if given := os.environ.get("BINLAKE_WORLD_SEEDS"):
        first, count, *world = map(int, given.split(":"))
        return [Seeds(range(first, first + count), *(world or [first]))]
    first = 1_000_000 * PAIRS.index(families)
    starts = range(first, first + count, SOAKED)
    return [Seeds(range(start, min(start + SOAKED, first + count)), start) for start in starts]


@pytest.mark.parametrize("families", [one for one in PAIRS if one.source != one.target], ids=str)
def test_target_mirrors_and_feed_equal_a_drawn_source(families: Families, tmp_path: Path) -> None:
    # Each family as a source and as a target; pairs of one family are below.
    (seeds,) = choose_worlds(families, SEEDS)
    assert run_world(tmp_path, families, seeds, STEPS)["tables"] >= len(seeds.stories) // 2


@pytest.mark.soak
@pytest.mark.timeout(86_400)
@pytest.mark.parametrize("families", PAIRS, ids=str)
def test_many_drawn_sources(families: Families, tmp_path: Path) -> None:
    happened = Counter[str]()
    for seeds in choose_worlds(families, int(os.environ.get("WORLD_SEEDS", "4000")) // len(PAIRS)):
        folder = tmp_path / str(seeds.world)
        folder.mkdir()
        happened += run_world(folder, families, seeds, SOAKED_STEPS)
        shutil.rmtree(folder)
    print(dict(happened))
    if "BINLAKE_WORLD_SEEDS" not in os.environ:
        assert happened.keys() >= set(HAPPENS)
