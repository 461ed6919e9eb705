"""Tests that ask for `server` run on MariaDB and on MySQL, unless their marks limit them."""

from __future__ import annotations

from support import servers

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server
