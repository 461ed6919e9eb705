"""Drawn faults of the storage: each stop says what, where and how on, and all is equal at the end.

BINLAKE_STORAGE_SEEDS=FIRST:COUNT repeats seeds (R-03, R-23, R-43, C-01).
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from storageworld import StorageWorld, run_history
from support.mariadb import MariaDb

pytestmark = pytest.mark.mariadb

SEEDS, SOAKED = 1, 150
"""Histories, each with all kinds of faults, in `make test` and in `make soak`."""


def run_seeds(seeds: range, server: MariaDb, folder: Path) -> None:
    if given := os.environ.get("BINLAKE_STORAGE_SEEDS"):
        first, count = map(int, given.split(":"))
        seeds = range(first, first + count)
    for seed in seeds:
        (folder / str(seed)).mkdir()
        world = StorageWorld(folder / str(seed), server, Random(f"storage {seed}"))
        try:
            differences = run_history(world)
        except Exception as error:
            error.add_note(f"BINLAKE_STORAGE_SEEDS={seed}:1; {world.happened}")
            raise
        assert differences == [], "\n".join([f"BINLAKE_STORAGE_SEEDS={seed}:1", *differences, *world.happened])


def test_no_fault_of_the_storage_is_silent(mariadb: MariaDb, tmp_path: Path) -> None:
    run_seeds(range(SEEDS), mariadb, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_faults_of_the_storage(mariadb: MariaDb, tmp_path: Path) -> None:
    run_seeds(range(1000, 1000 + SOAKED), mariadb, tmp_path)
