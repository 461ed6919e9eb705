"""What a statement does is seen on a MariaDB and on a MySQL."""

from __future__ import annotations

from support import servers

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server
