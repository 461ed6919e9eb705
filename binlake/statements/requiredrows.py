"""Steps of a DDL that may refuse it, as texts among the DDL's statements. A server that got one would refuse it.

`RequireNoRows` guards a statement that would give rows values of the target's own choice, where the source's are not
known. `Refusal` is in place of a statement that the target has no words for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

_HEAD, _REFUSES = "BINLAKE REQUIRES ", "BINLAKE REFUSES "


@dataclass(frozen=True)
class RequireNoRows:
    """`table`, `where`: SQL text; `why`: what is not known of such rows, and the ways on, for the error."""

    table: str
    where: str
    why: str

    def to_sql(self) -> str:
        """The text in `statement`."""
        return f"{_HEAD}{json.dumps(asdict(self), ensure_ascii=False)}"

    @classmethod
    def find_in(cls, sql: str) -> RequireNoRows | None:
        """The step that `sql` is; None for a statement of the server."""
        return cls(**json.loads(sql.removeprefix(_HEAD))) if sql.startswith(_HEAD) else None


@dataclass(frozen=True)
class Refusal:
    """`why`: the error's message, in full: a server's own, as SIGNAL raises it, ends after 128 characters."""

    why: str

    def to_sql(self) -> str:
        """The text in `statement`."""
        return f"{_REFUSES}{json.dumps(self.why, ensure_ascii=False)}"

    @classmethod
    def find_in(cls, sql: str) -> Refusal | None:
        """The refusal that `sql` is; None for any other statement."""
        return cls(json.loads(sql.removeprefix(_REFUSES))) if sql.startswith(_REFUSES) else None
