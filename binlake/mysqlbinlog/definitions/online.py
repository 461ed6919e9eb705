"""Tables of gh-ost and pt-online-schema-change: their DDL and rows are ignored until the tool swaps the tables.

A **shadow** (`_t_gho`, `_t_new`) begins as a copy of `t`; its ALTERs are recorded and applied to `t` itself when the
shadow is renamed to `t`. **Trash** (`_t_ghc`, `_t_del`, `_t_old`) is the tool's log, or what `t` was before. The rows
of `t` are replicated all the time: nothing is lost, and no target copies a table twice. A table with such a name but
without a `t`, or that is not a copy of `t`, is treated like any other table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from binlake.dialect.classify import NameRef
from binlake.mysqlbinlog.model import Session

_SHADOW = re.compile(r"^_(.+)_(?:gho|new)$", re.IGNORECASE)
_TRASH = re.compile(r"^_(.+?)(?:_\d{14})?_(?:ghc|del|old)$", re.IGNORECASE)
Role = Literal["shadow", "trash", "gone"]
KEY = "online"
"""The key in a job's `feeder` under which such a table is stored."""


def find_shadow_base(table: str) -> str | None:
    """The table whose shadow `table` would be; None for any other name."""
    match = _SHADOW.match(table)
    return match[1] if match else None


def find_trash_base(table: str) -> str | None:
    """The table whose trash `table` would be; None for any other name."""
    match = _TRASH.match(table)
    return match[1] if match else None


def is_tool_log(table: str) -> bool:
    """True for the name of gh-ost's log table."""
    return table.lower().endswith("_ghc")


@dataclass(frozen=True)
class OnlineTable:
    """A tool's table for `base`; `alters`: (text, session) of the ALTERs of a shadow, in order."""

    db: str
    table: str
    base: str
    role: Role
    alters: tuple[tuple[str, Session], ...] = ()

    @property
    def name(self) -> NameRef:
        """(db, table)."""
        return self.db, self.table

    def with_alter(self, text: str, session: Session) -> OnlineTable:
        """The table with one more ALTER."""
        return replace(self, alters=(*self.alters, (text, session)))

    def to_json(self) -> dict[str, Any]:
        """The value for a job's `feeder`."""
        return {**asdict(self), "alters": [[text, asdict(session)] for text, session in self.alters]}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> OnlineTable:
        """Parse the result of `to_json`."""
        alters = tuple((text, Session(**session)) for text, session in raw["alters"])
        return cls(raw["db"], raw["table"], raw["base"], raw["role"], alters)
