"""Random interleavings of DDL and rows of three shards; the target is compared with the real shards (R-15)."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import modelmerge
import pytest
from modelerrors import Wrong
from modellog import log_of
from modelmerge import MergedShards, converter_of
from modelshardlife import draw_life
from support.mariadb import MariaDb
from support.windows import target_of

from binlake.ddl import optimistic
from binlake.errors import BinlakeError
from binlake.target import apply_window

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(600)]

SEEDS = int(os.environ.get("BINLAKE_SHARD_SEEDS", "5"))


def draw(shards: MergedShards, ddl: Callable[[], None]) -> None:
    """Draw rows, a `ddl`, or a table that is dropped or created."""
    kind = shards.random.choices(("rows", "ddl", "life"), (50, 40, 10))[0]
    {"rows": shards.write, "ddl": ddl, "life": lambda: draw_life(shards)}[kind]()


def run_optimistic(server: MariaDb, seed: int) -> None:
    """One history, window by window. Raises Wrong, or the error that stops a window."""
    server.wipe()
    random = Random(f"optimistic {seed}")
    shards, target, lo = MergedShards(server, random), target_of(server), 0
    try:
        for _ in range(random.randint(4, 7)):
            for _ in range(random.randint(1, 6)):
                draw(shards, shards.draw_ddl)
            hi = shards.w.clock()
            statements = converter_of(shards, random, "optimistic").convert(lo, hi, target, "safe")
            apply_window(target, statements.manifest, statements)
            if differences := list(shards.differences()):
                raise Wrong(f"at {hi}: {differences}")
            lo = hi
    except (Wrong, BinlakeError) as error:
        error.add_note("\n".join([*shards.drawn, f"seed {seed}"]))
        raise


def run_pessimistic(server: MariaDb, seed: int) -> int:
    """Like `run_optimistic`, but DDL wait; returns how many windows ended with waiting rows."""
    server.wipe()
    random = Random(f"pessimistic {seed}")
    shards, target, lo, waited = MergedShards(server, random), target_of(server), 0, 0
    converter = converter_of(shards, random, "pessimistic")
    try:
        for _ in range(random.randint(5, 9)):
            for _ in range(random.randint(1, 7)):
                draw(shards, shards.draw_step)
            differences = [""]
            while differences:
                hi, converter.source = shards.w.clock(), log_of(shards.w)
                converter._states.clear()
                statements = converter.convert(lo, hi, target, "safe")
                apply_window(target, statements.manifest, statements)
                lo, differences = hi, list(shards.held_differences())
                if differences and not shards.may_follow:
                    raise Wrong(f"at {hi}: {differences}")
                shards.may_follow -= shards.may_follow > 0
            shards.may_follow, waited = 0, waited + any(shard.steps for shard in shards.shards)
    except (Wrong, BinlakeError) as error:
        error.add_note("\n".join([*shards.drawn, f"seed {seed}"]))
        raise
    return waited


def run_all(server: MariaDb) -> None:
    """Run all seeds."""
    for seed in range(SEEDS):
        run_optimistic(server, seed)


def for_all_pessimistic(server: MariaDb) -> int:
    """Run all seeds; return the number of windows that ended with waiting rows."""
    return sum(run_pessimistic(server, seed) for seed in range(SEEDS))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_target_equals_all_shards_after_any_ddl(mariadb: MariaDb, seed: int) -> None:  # R-15 S4-03 S4-53
    run_optimistic(mariadb, seed)


def test_the_model_finds_a_statement_that_adds_an_existing_column(
    mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The source's own text adds a column that the target already has from another shard.
    monkeypatch.setattr(optimistic, "_compute_layout_change", lambda *_: ())
    with pytest.raises((Wrong, BinlakeError), match=r"Duplicate column|definition"):
        run_all(mariadb)


def test_rows_after_a_ddl_wait_until_all_shards_have_it(mariadb: MariaDb) -> None:  # R-15 S4-53
    assert for_all_pessimistic(mariadb) > SEEDS


def test_the_model_finds_rows_that_do_not_wait(mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modelmerge, "apply_holds", lambda rows, *_: rows)
    with pytest.raises((Wrong, BinlakeError)):
        for_all_pessimistic(mariadb)


@pytest.mark.soak
def test_many_interleavings_match_the_shards(mariadb: MariaDb) -> None:  # R-15 S4-53
    for seed in range(SEEDS, 60 * SEEDS):
        run_optimistic(mariadb, seed)
        run_pessimistic(mariadb, seed)
