"""The SQL dialects that a target may have (`target.db-type`)."""

from __future__ import annotations

from typing import Literal

Dialect = Literal["mysql", "mariadb", "tidb"]
