"""What verify reports, and what repairs and backfills write, is tested on MariaDB and on MySQL."""

from __future__ import annotations

from support import servers, shopfixtures

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server
shops, first_shop = shopfixtures.shops, shopfixtures.first_shop
