"""The models with a real MySQL, in its dialect: its collations have TiDB's names, but its DDL text differs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ddlclauses import Features
from ddlrun import DdlModel, DdlShape, ddl_brought_down
from support.mariadb import MySql

from binlake.errors import BinlakeError

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(600)]

SEEDS, SOAKED, FIRST = 6, 200, 500


@pytest.fixture(scope="module")
def mysql_model(mysql_target: MySql) -> Iterator[DdlModel]:
    """Both models on the session's MySQL."""
    mysql_target.wipe()
    model = DdlModel(mysql_target, "mysql")
    yield model
    model.close()


# Some conversions of stored values cannot be expressed in MySQL and are refused (docs/understand/target-mapping.md).
PLAIN = DdlShape(features=Features(conversions=False))


def brought_down(model: DdlModel, seeds: range) -> None:
    for seed in seeds:
        try:
            model.run(seed)
        except (AssertionError, BinlakeError) as error:
            pytest.fail(f"seed {seed}: {error}")


def test_a_mysql_target_equals_the_source_at_every_checkpoint(mysql_model: DdlModel) -> None:
    # S4-39, S4-48, R-22
    brought_down(mysql_model, range(FIRST, FIRST + SEEDS))


def test_whole_databases_on_mysql_equal_the_source_after_any_ddl(mysql_model: DdlModel) -> None:
    #
    ddl_brought_down(mysql_model, range(FIRST, FIRST + SEEDS), PLAIN)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_more_seeds_on_mysql(mysql_model: DdlModel) -> None:
    seeds = range(FIRST + SEEDS, FIRST + SOAKED)
    brought_down(mysql_model, seeds)
    ddl_brought_down(mysql_model, seeds, PLAIN)
