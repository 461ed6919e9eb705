"""The SQL dialects that a target may speak: the words of `db-type` in the configuration."""

from __future__ import annotations

from typing import Literal

Dialect = Literal["mysql", "mariadb", "tidb"]
