"""The effect of DDL text is tested on a MariaDB and on a MySQL server."""

from __future__ import annotations

from support import servers

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server
