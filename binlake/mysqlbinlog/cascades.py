"""Refuse row changes whose foreign keys change rows of other tables that the log does not have.

InnoDB itself deletes and updates the rows below ON DELETE CASCADE and SET NULL. MariaDB logs none of this, nor does
MySQL before 9.6. Which rows they were is not known here, so the change that may cause them is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from binlake.dialect.tokens import Token, find_closing, split_list, tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.model import RowKind, RowsEvent
from binlake.mysqlbinlog.rowimage.plain import find_changed_columns
from binlake.mysqlbinlog.rowimage.shape import Shape
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.rows.schema.names import fold_name, fold_pair

Name = tuple[str, str]


@dataclass(frozen=True)
class Cascade:
    """A foreign key of `child` that changes its rows with those of `parent`: when a row is deleted, or when a column of
    `columns` (folded) changes."""

    parent: Name
    child: Name
    on_delete: bool
    on_update: bool
    columns: tuple[str, ...]


def find_cascades(child: Name, create: str) -> list[Cascade]:
    """The foreign keys in a CREATE TABLE (as SHOW CREATE TABLE writes it) that change rows of `child`."""
    tokens = tokenize(create)
    opening = next((at for at, token in enumerate(tokens) if token.is_mark("(")), None)
    if opening is None:
        return []
    parts = split_list(tokens[opening + 1 : find_closing(tokens, opening)])
    return [cascade for part in parts for cascade in _read_foreign_key(child, part)]


def make_cascade_guard(cascades: Iterable[Cascade]) -> Guard | None:
    """The guard against `cascades`; None if there is nothing to guard."""
    by_parent: dict[Name, list[Cascade]] = {}
    for cascade in cascades:
        by_parent.setdefault(fold_pair(cascade.parent), []).append(cascade)
    return _Guard(by_parent).require_logged if by_parent else None


class _Guard:
    def __init__(self, by_parent: Mapping[Name, Sequence[Cascade]]) -> None:
        self._by_parent = by_parent

    def require_logged(self, event: RowsEvent, shape: Shape | None) -> None:
        """Raises SchemaError if a foreign key may have changed rows together with those of `event`."""
        if event.kind is RowKind.INSERT or event.unchecked:
            return
        for cascade in self._by_parent.get(fold_pair((event.table.db, event.table.table)), ()):
            if _may_cascade(cascade, event, shape):
                raise _make_unlogged_error(cascade, event.kind)


def _may_cascade(cascade: Cascade, event: RowsEvent, shape: Shape | None) -> bool:
    """`shape`: None for a table that is left out: which of its columns changed is not known here."""
    if event.kind is RowKind.DELETE:
        return cascade.on_delete
    return cascade.on_update and (shape is None or not find_changed_columns(event, shape).isdisjoint(cascade.columns))


def _make_unlogged_error(cascade: Cascade, kind: RowKind) -> SchemaError:
    deleted = kind is RowKind.DELETE
    return SchemaError(
        "a foreign key may have changed rows that are not in the log (CASCADE or SET NULL)",
        where={
            "table": ".".join(cascade.parent), "change": "DELETE" if deleted else "UPDATE of its key",
            "rows_of": ".".join(cascade.child),
        },
        hint="if the application always changes those rows itself before, set `unlogged-cascades = \"none\"` for the"
        " source in feeder.toml; or leave that table out (ignore-tables); else replace the foreign key by one without"
        " CASCADE and SET NULL at the source, and take a new snapshot (binlake bootstrap)",
    )  # fmt: skip


def _read_foreign_key(child: Name, part: Sequence[Token]) -> list[Cascade]:
    at = next((at for at, token in enumerate(part) if token.is_word("REFERENCES")), None)
    if at is None or not any(token.is_word("FOREIGN") for token in part[:at]):
        return []
    opening = next(n for n in range(at, len(part)) if part[n].is_mark("("))
    names = [token.value for token in part[at + 1 : opening] if not token.is_mark(".")]
    closing = find_closing(part, opening)
    columns = tuple(fold_name(token.value) for token in part[opening + 1 : closing] if not token.is_mark(","))
    actions = {part[n + 1].text.upper(): part[n + 2].text.upper() for n in range(closing, len(part) - 2)
               if part[n].is_word("ON")}  # fmt: skip
    changes = {event: action in ("CASCADE", "SET") for event, action in actions.items()}
    cascade = Cascade(
        (names[-2] if len(names) > 1 else child[0], names[-1]),
        child,
        changes.get("DELETE", False),
        changes.get("UPDATE", False),
        columns,
    )
    return [cascade] if cascade.on_delete or cascade.on_update else []
