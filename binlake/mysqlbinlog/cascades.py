"""Refuse row changes whose foreign keys change rows of other tables that the log does not have.

InnoDB itself deletes and updates the rows below ON DELETE CASCADE and SET NULL. MariaDB logs none of this, nor does
MySQL before 9.6. Which rows they were is not known here, so the change that may cause them is refused. The rows in
between may be those of tables that are left out: a chain of foreign keys is followed through them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from binlake.dialect.classify import read_name
from binlake.dialect.tokens import Token, find_closing, split_list, tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.model import RowKind, RowsEvent
from binlake.mysqlbinlog.rowimage.plain import find_changed_columns
from binlake.mysqlbinlog.rowimage.shape import Shape
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.rows.schema.forms import fold_name, fold_pair

Name = tuple[str, str]


@dataclass(frozen=True)
class Cascade:
    """A foreign key of `child` that changes its rows with those of `parent`: when a row is deleted (`removes`: it
    deletes them), or when a column of `columns` (folded; none = any column) changes. `own`: its columns in `child`;
    `name`: as far as the text has one; `through`: the tables between `parent` and `child`."""

    parent: Name
    child: Name
    on_delete: bool
    on_update: bool
    columns: tuple[str, ...]
    own: tuple[str, ...] = ()
    removes: bool = False
    name: str = ""
    through: tuple[Name, ...] = ()


def find_cascades(child: Name, create: str) -> list[Cascade]:
    """The foreign keys in a CREATE TABLE (as SHOW CREATE TABLE writes it) that change rows of `child`."""
    return [key for key in read_foreign_keys(child, tokenize(create)) if key.on_delete or key.on_update]


def read_foreign_keys(child: Name, create: Sequence[Token]) -> list[Cascade]:
    """All foreign keys in a CREATE TABLE, also those that change no rows."""
    opening = next((at for at, token in enumerate(create) if token.is_mark("(")), None)
    if opening is None:
        return []
    parts = split_list(create[opening + 1 : find_closing(create, opening)])
    return [key for part in parts if (key := read_foreign_key(child, part)) is not None]


def trace_cascades(
    keys: Iterable[Cascade], follows: Callable[[Name], bool], altered: Collection[Name] = ()
) -> list[Cascade]:
    """The cascades that end in a followed table, each as one from the first table of its chain: a chain goes on through
    tables that are left out. `altered`: tables (folded) whose columns may have other names than the keys say."""
    by_parent: dict[Name, list[Cascade]] = {}
    for key in keys:
        if key.on_delete or key.on_update:
            by_parent.setdefault(fold_pair(key.parent), []).append(key)
    found = dict[Cascade, None]()
    for first in (key for of_parent in by_parent.values() for key in of_parent):
        if follows(first.child):
            found[first] = None
            continue
        deleted = list(_list_ends(first, True, by_parent, follows, altered)) if first.on_delete else []
        updated = list(_list_ends(first, False, by_parent, follows, altered)) if first.on_update else []
        for child, through in [*deleted, *updated]:
            chain = replace(
                first, child=child, through=through,
                on_delete=child in (end for end, _ in deleted), on_update=child in (end for end, _ in updated),
            )  # fmt: skip
            found[chain] = None
    return list(found)


def _list_ends(
    first: Cascade,
    is_delete: bool,
    by_parent: Mapping[Name, Sequence[Cascade]],
    follows: Callable[[Name], bool],
    altered: Collection[Name],
) -> Iterator[tuple[Name, tuple[Name, ...]]]:
    """The followed tables that a change of `first.parent` reaches through `first.child`, and the tables in between."""
    waiting: list[tuple[Cascade, bool, tuple[Name, ...]]] = [(first, is_delete and first.removes, ())]
    known = set[tuple[Cascade, bool]]()
    while waiting:
        key, is_removed, before = waiting.pop()
        if (key, is_removed) in known:
            continue
        known.add((key, is_removed))
        if follows(key.child):
            yield key.child, before
            continue
        child = fold_pair(key.child)
        for after in by_parent.get(child, ()):
            concerns = child in altered or not after.columns or not set(after.columns).isdisjoint(key.own)
            if after.on_delete if is_removed else after.on_update and concerns:
                waiting.append((after, is_removed and after.removes, (*before, key.child)))


def build_cascade_guard(cascades: Iterable[Cascade]) -> Guard | None:
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
                raise _build_unlogged_error(cascade, event.kind)


def _may_cascade(cascade: Cascade, event: RowsEvent, shape: Shape | None) -> bool:
    """`shape`: None for a table that is left out: which of its columns changed is not known here."""
    if event.kind is RowKind.DELETE:
        return cascade.on_delete
    if not cascade.on_update or shape is None or not cascade.columns:
        return cascade.on_update
    return not find_changed_columns(event, shape).isdisjoint(cascade.columns)


def _build_unlogged_error(cascade: Cascade, kind: RowKind) -> SchemaError:
    deleted = kind is RowKind.DELETE
    through = {"through": ", ".join(".".join(name) for name in cascade.through)} if cascade.through else {}
    return SchemaError(
        "a foreign key may have changed rows that are not in the log (CASCADE or SET NULL)",
        where={
            "table": ".".join(cascade.parent), "change": "DELETE" if deleted else "UPDATE of its key",
            "rows_of": ".".join(cascade.child), **through,
        },
        hint="if the application always changes those rows itself before, set `unlogged-cascades = \"none\"` for the"
        " source in feeder.toml; or leave that table out (ignore-tables); else replace the foreign key by one without"
        " CASCADE and SET NULL at the source, and take a new snapshot (binlake bootstrap)",
    )  # fmt: skip


def read_foreign_key(child: Name, part: Sequence[Token]) -> Cascade | None:
    """The foreign key that a part of a CREATE TABLE, or a clause of an ALTER TABLE, defines; None if there is none."""
    at = next((at for at, token in enumerate(part) if token.is_word("REFERENCES")), None)
    if at is None:
        return None
    key = next((n for n, token in enumerate(part[:at]) if token.is_word("FOREIGN")), None)
    parent, end = read_name(part, at + 1)
    if parent is None:
        return None
    columns = tuple[str, ...]()
    if end < len(part) and part[end].is_mark("("):
        columns, end = _read_columns(part, end)
    own: tuple[str, ...] = (fold_name(part[0].value),)
    if key is not None:
        own = _read_columns(part, next(n for n in range(key, at) if part[n].is_mark("(")))[0]
    actions = {part[n + 1].text.upper(): part[n + 2].text.upper() for n in range(end, len(part) - 2)
               if part[n].is_word("ON")}  # fmt: skip
    changes = {event: action in ("CASCADE", "SET") for event, action in actions.items()}
    constraint = next((n for n, token in enumerate(part[: key or 0]) if token.is_word("CONSTRAINT")), None)
    return Cascade(
        (parent[0] or child[0], parent[1]),
        child,
        changes.get("DELETE", False),
        changes.get("UPDATE", False),
        columns,
        own,
        actions.get("DELETE") == "CASCADE",
        fold_name(part[constraint + 1].value) if constraint is not None and constraint + 1 != key else "",
    )


def _read_columns(part: Sequence[Token], opening: int) -> tuple[tuple[str, ...], int]:
    """The names (folded) of the list that begins at `opening`, and the index after it."""
    closing = find_closing(part, opening)
    names = tuple(fold_name(token.value) for token in part[opening + 1 : closing] if not token.is_mark(","))
    return names, closing + 1
