"""Tables of gh-ost and pt-online-schema-change: their DDL and rows are left out until the tool swaps the tables.

A **shadow** (`_t_gho`, `_t_new`) begins as a copy of `t`; what ALTER does to it is remembered and done to `t` itself
when the shadow is renamed to `t`. **Trash** (`_t_ghc`, `_t_del`, `_t_old`) is what the tool writes down or what `t` was
before. The rows of `t` go on all the while: nothing is lost, and no target copies a table twice. A table of such a name
without a `t` beside it, or that is no copy of `t`, is one like any other.
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
"""The key of a job's `feeder` that remembers such a table."""


def shadow_base(table: str) -> str | None:
    """The table of which `table` would be the shadow; None for any other name."""
    match = _SHADOW.match(table)
    return match[1] if match else None


def trash_base(table: str) -> str | None:
    """The table of whose tool `table` would be the trash; None for any other name."""
    match = _TRASH.match(table)
    return match[1] if match else None


def is_tool_log(table: str) -> bool:
    """True for the name of the table in which gh-ost writes down what it does."""
    return table.lower().endswith("_ghc")


@dataclass(frozen=True)
class OnlineTable:
    """A tool's table of `base`; `alters`: (text, session) of what was done to a shadow, in order."""

    db: str
    table: str
    base: str
    role: Role
    alters: tuple[tuple[str, Session], ...] = ()

    @property
    def name(self) -> NameRef:
        """(db, table)."""
        return self.db, self.table

    def altered(self, text: str, session: Session) -> OnlineTable:
        """With one more ALTER."""
        return replace(self, alters=(*self.alters, (text, session)))

    def to_json(self) -> dict[str, Any]:
        """For a job's `feeder`."""
        return {**asdict(self), "alters": [[text, asdict(session)] for text, session in self.alters]}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> OnlineTable:
        """What `to_json` wrote."""
        alters = tuple((text, Session(**session)) for text, session in raw["alters"])
        return cls(raw["db"], raw["table"], raw["base"], raw["role"], alters)
