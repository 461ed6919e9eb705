"""Each test that asks for `server` or `target` runs on MariaDB and on MySQL, unless its mark `servers` limits it.

Each test that asks for `target` starts with a new database `app` and without any of Binlake's tables.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import servers
from support.children import end_children
from support.mariadb import MariaDb, execute
from support.windows import target_of

from binlake.config.servers import TargetSection

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server


@pytest.fixture
def target(server: MariaDb) -> Iterator[TargetSection]:
    """The session's server with the empty tables app.t(id, v) and app.log(line), which has no key; no checkpoint."""
    server.end_sessions()
    execute(
        server,
        "SET foreign_key_checks = 0",
        "DROP DATABASE IF EXISTS tidb_binlog",
        "DROP DATABASE IF EXISTS app",
        "CREATE DATABASE app CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "CREATE TABLE app.t (id BIGINT PRIMARY KEY, v VARCHAR(20)) ENGINE = InnoDB",
        "CREATE TABLE app.log (line VARCHAR(40)) ENGINE = InnoDB",
    )
    yield target_of(server)
    end_children()
