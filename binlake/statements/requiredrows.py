"""Steps of a DDL that may refuse it, as texts among the DDL's statements. A server that got one would refuse it.

`RequireNoRows` guards a statement that would give rows values of the target's own choice, where the source's are not
known. `RefusedStatement` is in place of a statement that the target has no words for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import compress

from binlake.statements.batch import StatementBatch

_HEAD, _REFUSES = "BINLAKE REQUIRES ", "BINLAKE REFUSES "


@dataclass(frozen=True)
class RequireNoRows:
    """`table`, `where`: SQL text; `why`: what is not known of such rows, and the ways on, for the error. `variable`:
    what is known once it is known that a session of the source had this variable's default."""

    table: str
    where: str
    why: str
    variable: str = ""

    def to_sql(self) -> str:
        """The text in `statement`."""
        values = {name: value for name, value in asdict(self).items() if value}
        return f"{_HEAD}{json.dumps(values, ensure_ascii=False)}"

    @classmethod
    def find_in(cls, sql: str) -> RequireNoRows | None:
        """The step that `sql` is; None for a statement of the server."""
        return cls(**json.loads(sql.removeprefix(_HEAD))) if sql.startswith(_HEAD) else None


def assume_default_variables(ddl: StatementBatch) -> StatementBatch:
    """`ddl` without what it requires only because a session of the source may have had other variables."""
    required = [RequireNoRows.find_in(sql) for sql in ddl.sql]
    kept = [one is None or not one.variable for one in required]
    return replace(ddl, sql=tuple(compress(ddl.sql, kept)), expect=tuple(compress(ddl.expect, kept)))


@dataclass(frozen=True)
class RefusedStatement:
    """`why`: the error's message, in full: a server's own, as SIGNAL raises it, ends after 128 characters."""

    why: str

    def to_sql(self) -> str:
        """The text in `statement`."""
        return f"{_REFUSES}{json.dumps(self.why, ensure_ascii=False)}"

    @classmethod
    def find_in(cls, sql: str) -> RefusedStatement | None:
        """The refusal that `sql` is; None for any other statement."""
        return cls(json.loads(sql.removeprefix(_REFUSES))) if sql.startswith(_REFUSES) else None
