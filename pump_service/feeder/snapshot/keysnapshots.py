"""Finds the snapshot in which a row was read, by the first column of its key: the source compares, as it did then.

The ranges of a table have literals as bounds. Collations differ by server and version, so only the server's own
comparison shows on which side of a bound a key lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from binlake.errors import SourceRefused
from binlake.mysqlbinlog.tablerows.chunks import build_key_formatter
from binlake.mysqlbinlog.tablerows.link import Link, Name, ask
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_AT_ONCE = 500
"""Keys in one query."""


class KeySnapshots:
    """Keys of table `name`, whose ranges are `stored` and split by `column`; `link` is a session of `opening`."""

    def __init__(self, link: Link, name: Name, column: ColumnInfo, stored: Sequence[tuple[str, str, int]]) -> None:
        self._link = link
        self._typed = _build_typed_literal(link, name, column)
        self._literal = build_key_formatter(column)
        cases = [f"WHEN v <= {high} THEN {snapshot}" for _, high, snapshot in stored if high]
        self._case = f"CASE WHEN v IS NULL THEN NULL {' '.join(cases)} ELSE {stored[-1][2]} END"
        self._known: dict[str, int] = {}

    def find_snapshots(self, texts: Iterable[str]) -> dict[str, int]:
        """The snapshot of each key, by its canonical text; -1: not read yet. Raises SourceRefused, pymysql's errors."""
        wanted = set(texts)
        new = sorted(wanted - self._known.keys())
        for first in range(0, len(new), _AT_ONCE):
            self._ask(new[first : first + _AT_ONCE])
        snapshots = {text: self._known[text] for text in wanted}
        if len(self._known) > 100 * _AT_ONCE:
            self._known.clear()
        return snapshots

    def _ask(self, texts: Sequence[str]) -> None:
        values = (self._typed.format(self._literal(text)) for text in texts)
        rows = " UNION ALL ".join(f"SELECT {n} AS n, {value} AS v" for n, value in enumerate(values))
        for number, snapshot in ask(self._link, f"SELECT n, {self._case} FROM ({rows}) AS k"):
            if snapshot is None:
                raise SourceRefused("the source reads a key from its log as NULL", where={"key": texts[int(number)]})
            self._known[texts[int(number)]] = int(snapshot)


def _build_typed_literal(link: Link, name: Name, column: ColumnInfo) -> str:
    """A template that converts a literal to the column's own type."""
    if column.is_binary or column.tp not in t.STRINGS:
        casts = {t.DURATION: "TIME(6)", t.DATE: "DATE", t.NEWDATE: "DATE"}
        moment = "DATETIME(6)" if column.tp in t.MOMENTS else ""
        cast = casts.get(column.tp, moment)
        return f"CAST({{}} AS {cast})" if cast else "{}"
    query = (
        "SELECT character_set_name, collation_name FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s AND column_name = %s"
    )
    rows = ask(link, query, (*name, column.name))
    if not rows:
        raise SourceRefused("the source no longer has this column", where={"column": ".".join((*name, column.name))})
    charset, collation = rows[0]
    return f"CONVERT({{}} USING {charset}) COLLATE {collation}"
