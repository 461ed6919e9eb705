"""The dialects of SQL that a target may speak (`target.db-type`)."""

from __future__ import annotations

from typing import Literal

Dialect = Literal["mysql", "mariadb", "tidb"]
