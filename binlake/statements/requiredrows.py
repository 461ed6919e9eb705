"""A step of a DDL that requires the target to have no row of a kind, as a text among the DDL's statements.

It guards a statement that would give such rows values of the target's own choice, where the source's are not known. A
server that got the text would refuse it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

_HEAD = "BINLAKE REQUIRES "


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
