"""Tests that ask for `server` run on MariaDB and on MySQL, unless their marks limit them; validation uses the shop."""

from __future__ import annotations

from support import servers, shopfixtures

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server
shops, first_shop = shopfixtures.shops, shopfixtures.first_shop
