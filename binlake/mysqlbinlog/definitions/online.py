"""Tables of gh-ost and pt-online-schema-change: their DDL and rows are ignored until the tool swaps the tables.

A tool is recognised by what it does, never by a name alone. gh-ost creates its log (`_t_ghc`, with the columns of a
changelog) and then the **shadow** `_t_gho`. pt-online-schema-change creates `_t_new` and then triggers `pt_osc_...` on
`t` that write to it: until then the table is a **candidate**, replicated like any other. A shadow begins as a copy of
`t`; its ALTERs are recorded and applied to `t` itself when the shadow is renamed to `t`. **Trash** is gh-ost's log and
sentry, and what `t` was before. The rows of `t` are replicated all the time: nothing is lost, and no target copies a
table twice. A user's own table with such a name is a table like any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from binlake.dialect.classify import NameRef, read_name
from binlake.dialect.tokens import Token, TokenKind, find_closing, skip_exists, split_list
from binlake.mysqlbinlog.model import LoggedSession
from binlake.rows.schema.forms import fold_name

_GHOST = re.compile(r"^_(.+)_gho$", re.IGNORECASE)
_CANDIDATE = re.compile(r"^_+(.+)_new$", re.IGNORECASE)
_LOG = re.compile(r"^_(.+)_ghc$", re.IGNORECASE)
_TRASH = re.compile(r"^_+(.+?)(?:_\d{14})?_(?:del|old)$", re.IGNORECASE)
_SENTRY = "ghost-cut-over-sentry"
"""The comment of the table that gh-ost creates to lock the swap."""
_LOG_COLUMNS = frozenset({"id", "last_update", "hint", "value"})
_TRIGGER_PREFIX = "pt_osc_"
Role = Literal["candidate", "shadow", "trash", "gone"]
KEY = "online"
"""The key in a job's `feeder` under which such a table is stored."""


def find_ghost_base(table: str) -> str | None:
    """The table whose gh-ost shadow `table` would be; None for any other name."""
    match = _GHOST.match(table)
    return match[1] if match else None


def find_candidate_base(table: str) -> str | None:
    """The table whose pt-online-schema-change copy `table` would be; None for any other name."""
    match = _CANDIDATE.match(table)
    return match[1] if match else None


def find_log_base(table: str, create: Sequence[Token]) -> str | None:
    """The table whose changelog `table` would be, by its name and by the columns of its CREATE TABLE; else None."""
    match = _LOG.match(table)
    start = next((at for at, token in enumerate(create) if token.is_mark("(")), len(create))
    parts = split_list(create[start + 1 : find_closing(create, start)]) if start < len(create) else []
    has_columns = {fold_name(part[0].value) for part in parts if part} >= _LOG_COLUMNS
    return match[1] if match and has_columns else None


def find_trash_base(table: str) -> str | None:
    """The table that `table` would have been before a swap; None for any other name."""
    match = _TRASH.match(table)
    return match[1] if match else None


def is_sentry(create: Sequence[Token]) -> bool:
    """Whether a CREATE TABLE is that of gh-ost's sentry."""
    return any(token.kind is TokenKind.STRING and token.value == _SENTRY for token in create)


def find_tool_trigger(tokens: Sequence[Token]) -> NameRef | None:
    """The table ("" for the session's database) of a trigger that pt-online-schema-change creates; else None."""
    at = next((at for at, token in enumerate(tokens) if token.is_word("TRIGGER")), len(tokens))
    if not tokens or not tokens[0].is_word("CREATE"):
        return None
    name, after = read_name(tokens, skip_exists(tokens, at + 1))
    on = next((n for n in range(after, len(tokens)) if tokens[n].is_word("ON")), len(tokens))
    is_tool = name is not None and name[1].lower().startswith(_TRIGGER_PREFIX)
    return read_name(tokens, on + 1)[0] if is_tool else None


def names_table(tokens: Sequence[Token], table: str) -> bool:
    """Whether a statement has the name of `table` in it."""
    kinds = (TokenKind.NAME, TokenKind.WORD)
    return any(token.kind in kinds and fold_name(token.value) == fold_name(table) for token in tokens)


@dataclass(frozen=True)
class OnlineTable:
    """A tool's table for `base`; `alters`: (text, session) of the ALTERs of a shadow or candidate, in order."""

    db: str
    table: str
    base: str
    role: Role
    alters: tuple[tuple[str, LoggedSession], ...] = ()

    @property
    def name(self) -> NameRef:
        """(db, table)."""
        return self.db, self.table

    @property
    def is_left_out(self) -> bool:
        """Whether its rows are not replicated."""
        return self.role in ("shadow", "trash")

    def with_alter(self, text: str, session: LoggedSession) -> OnlineTable:
        """The table with one more ALTER."""
        return replace(self, alters=(*self.alters, (text, session)))

    def to_json(self) -> dict[str, Any]:
        """The value for a job's `feeder`."""
        return {**asdict(self), "alters": [[text, asdict(session)] for text, session in self.alters]}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> OnlineTable:
        """Parse the result of `to_json`."""
        alters = tuple((text, LoggedSession(**session)) for text, session in raw["alters"])
        return cls(raw["db"], raw["table"], raw["base"], raw["role"], alters)
