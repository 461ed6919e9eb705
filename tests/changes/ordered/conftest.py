"""How texts compare is asked of a MariaDB and of a MySQL."""

from __future__ import annotations

from support import servers

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server
