"""Fixtures of the models; the models' modules are imported from this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ddlrun import DdlModel
from modelrun import Model
from support.mariadb import MariaDb, execute


@pytest.fixture(scope="module")
def model(mariadb: MariaDb) -> Iterator[Model]:
    """A model on the session's server, which need not sync every commit meanwhile, as nothing kills it here."""
    mariadb.wipe()
    execute(mariadb, "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    found = Model(mariadb)
    yield found
    found.close()
    mariadb.wipe()
    execute(mariadb, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")


@pytest.fixture(scope="module")
def ddl_model(mariadb: MariaDb) -> Iterator[DdlModel]:
    """A model of DDL on the session's server."""
    mariadb.wipe()
    execute(mariadb, "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    found = DdlModel(mariadb)
    yield found
    found.close()
    mariadb.wipe()
    execute(mariadb, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
