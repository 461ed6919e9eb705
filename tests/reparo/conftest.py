"""Tests that ask for `server` run on a MariaDB and on a MySQL, as far as their marks let them."""

from __future__ import annotations

from support import servers

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server
