"""The models against a real MySQL, in its dialect: its collations are TiDB's by name, its DDL text another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ddlclauses import Features
from ddlrun import DdlModel, DdlShape, ddl_brought_down
from support.mariadb import MySql

from binlake.errors import BinlakeError

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(600)]

SEEDS, FIRST = 12, 500


@pytest.fixture(scope="module")
def mysql_model(mysql_target: MySql) -> Iterator[DdlModel]:
    """Both models on the session's MySQL."""
    mysql_target.wipe()
    found = DdlModel(mysql_target, "mysql")
    yield found
    found.close()


def test_a_mysql_target_is_the_source_at_every_checkpoint(mysql_model: DdlModel) -> None:
    # S4-39, S4-48, R-22
    for seed in range(FIRST, FIRST + SEEDS):
        try:
            mysql_model.run(seed)
        except (AssertionError, BinlakeError) as error:
            pytest.fail(f"seed {seed}: {error}")


def test_whole_databases_on_mysql_are_the_sources_behind_any_ddl(mysql_model: DdlModel) -> None:
    #
    # Some conversions of stored values cannot be said in MySQL and are refused (docs/understand/target-mapping.md).
    plain = DdlShape(features=Features(conversions=False))
    ddl_brought_down(mysql_model, range(FIRST, FIRST + SEEDS), plain)
