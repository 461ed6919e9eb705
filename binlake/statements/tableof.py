"""Which table one of Binlake's row statements writes: read from its beginning (`changes.ordered.forms`, `lenient`)."""

from __future__ import annotations

import re

from binlake.errors import Permanent

_NAME = r"`((?:[^`]|``)+)`"
_LENIENT = r"(?:SET STATEMENT sql_mode = '[A-Z_,]*' FOR )?"
_HINT = r"(?: /\*\+ SET_VAR\(sql_mode = '[A-Z_,]*'\) \*/)?"
_BEGINNING = re.compile(rf"{_LENIENT}(?:(?:INSERT|REPLACE){_HINT} INTO|DELETE FROM|UPDATE{_HINT}) {_NAME}\.{_NAME}[ (]")


def table_of(sql: str) -> tuple[str, str]:
    """(database, table) that `sql` inserts into, replaces in, deletes from or updates. Raises Permanent for others."""
    found = _BEGINNING.match(sql)
    if found is None:
        raise Permanent("a statement does not begin with the table that it writes", where={"statement": sql[:200]})
    db, table = (name.replace("``", "`") for name in found.groups())
    return db, table
