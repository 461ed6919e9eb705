"""Many seeds in several processes, each with a separate server; and how to repeat and simplify a failure."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import structlog
from ddlrun import DdlModel, DdlShape
from modelerrors import Wrong
from modelrun import Model, Shape
from support.mariadb import execute, mariadb_in_memory

from binlake.errors import BinlakeError

_PRINT_EVERY = 500


def replay_line(seed: int) -> str:
    """The command that repeats this seed alone."""
    return f"replay: BINLAKE_MODEL_SEED={seed} .venv/bin/python -m pytest tests/model -k 'every_checkpoint and 0'"


def simplest(model: Model, seed: int) -> str:
    """The smallest shape of `seed` that still fails: fewer transactions, no faults, no DDL if it fails without them."""
    shape = replace(Shape(), bytewise=seed % 16 == 15)
    for smaller in ({"faults": False}, {"ddl": False}, *({"transactions": n} for n in (7, 4, 2, 1))):
        trial = replace(shape, **smaller)  # type: ignore[arg-type]
        if _fails(model, seed, trial):
            shape = trial
    return f"it fails as {shape} too" if shape != Shape() else "it fails in its own shape only"


def _fails(model: Model, seed: int, shape: Shape) -> bool:
    try:
        model.run(seed, shape)
    except (Wrong, BinlakeError):
        return True
    return False


def failures_of(first: int, count: int, shards: int, ddl: DdlShape | None = None) -> list[str]:
    """Run `count` seeds from `first` on, in parallel; a line for each failed one. `ddl`: of the DDL model."""
    with ProcessPoolExecutor(shards, mp_context=get_context("spawn")) as pool:
        found = pool.map(_shard, [(first + n, first + count, shards, ddl, list(sys.path)) for n in range(shards)])
        return [line for lines in found for line in lines]


def _shard(task: tuple[int, int, int, DdlShape | None, list[str]]) -> list[str]:
    first, end, step, ddl, sys.path[:] = task
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    failed: list[str] = []
    with mariadb_in_memory() as server:
        execute(server, "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        model = DdlModel(server)
        for number, seed in enumerate(range(first, end, step)):
            try:
                model.run_ddl(seed, ddl) if ddl is not None else model.run(seed)
            except (Wrong, BinlakeError) as error:
                failed.append(
                    "\n".join([str(error), *getattr(error, "__notes__", ()), f"seed {seed}", replay_line(seed)])
                )
                print(failed[-1], flush=True)
            if number % _PRINT_EVERY == _PRINT_EVERY - 1:
                print(f"seed {seed}: {dict(model.happened)}, {len(failed)} failed", flush=True)
        model.close()
    return failed
