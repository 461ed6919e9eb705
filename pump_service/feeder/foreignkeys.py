"""The foreign keys of a source's tables that are left out: rows of followed tables may change through them.

A followed table's own keys are in its definition. Of the tables that are left out only this is kept: at the first start
from their definitions, then from the statements of the log. Every change of it is a job that has no effect downstream,
like those of online-DDL tools, and has all of it: so it is what the last of these jobs says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from binlake.dialect.classify import DdlKind
from binlake.dialect.tokens import Token, split_list, tokenize
from binlake.mysqlbinlog.cascades import (
    Cascade,
    Name,
    find_cascades,
    read_foreign_key,
    read_foreign_keys,
    trace_cascades,
)
from binlake.mysqlbinlog.definitions.descriptions import TableDescription
from binlake.mysqlbinlog.definitions.statements import SingleStatement
from binlake.mysqlbinlog.definitions.writer import DefinitionChange, JobWriter, SourceNames, read_source
from binlake.pump_service.feeder.unloggedrows import SPECS_AT
from binlake.rows.schema.forms import Json, fold_name, fold_pair

LEFT_OUT_KEYS = "left-out-keys"
"""The field of a job's `feeder`."""


class ForeignKeys:
    """Those of one source. `names`: which of its tables are left out."""

    def __init__(self, names: SourceNames, jobs: Iterable[Json]) -> None:
        self._names = names
        self._keys: dict[Name, tuple[Cascade, ...]] = {}
        self._altered: frozenset[Name] = frozenset()
        self._renamed: tuple[tuple[Name, Name], ...] = ()
        for job in jobs:
            if LEFT_OUT_KEYS in job["feeder"] and read_source(job) == names.name:
                self._restore(job["feeder"][LEFT_OUT_KEYS])

    def save_state(self) -> Callable[[], None]:
        """Returns a function that restores the current state."""
        state = dict(self._keys), self._altered, self._renamed

        def restore() -> None:
            self._keys, self._altered, self._renamed = state

        return restore

    def adopt(
        self, writer: JobWriter, tables: Iterable[TableDescription], *, is_first: bool = True
    ) -> list[DefinitionChange]:
        """Take over the keys of `tables`, all that the source has. `is_first`: no statement has been followed yet, so
        no text of a followed table names a parent that has another name now."""
        before = self._to_json()
        left_out = [table for table in tables if self._names.leaves_out(table.db, table.name)]
        self._keys = {
            fold_pair((table.db, table.name)): keys
            for table in left_out
            if "REFERENCES" in table.create and (keys := _read_keys((table.db, table.name), tokenize(table.create)))
        }
        if is_first:
            self._altered, self._renamed = frozenset(), ()
        return self._record(writer, before, "/* foreign keys of tables that are left out */")

    def follow(
        self, writer: JobWriter, singles: Sequence[SingleStatement], followed: Callable[[], Sequence[TableDescription]]
    ) -> list[DefinitionChange]:
        """The changes that `singles` make to the keys. `followed`: the tables that are followed."""
        changes = list[DefinitionChange]()
        for single in singles:
            before = self._to_json()
            self._follow_single(single, followed)
            changes += self._record(writer, before, single.text)
        return changes

    def trace(self, followed: Iterable[TableDescription]) -> list[Cascade]:
        """All cascades that change rows of the tables `followed`."""
        keys = [key for keys in self._keys.values() for key in keys]
        for table in followed:
            keys += find_cascades((table.db, table.name), table.create) if "REFERENCES" in table.create else ()
        renamed = [replace(key, parent=name) for key in keys for name in self._list_later_names(key.parent)]
        return trace_cascades([*keys, *renamed], lambda name: not self._names.leaves_out(*name), self._altered)

    def _follow_single(self, single: SingleStatement, followed: Callable[[], Sequence[TableDescription]]) -> None:
        name = fold_pair((single.db, single.table))
        if single.kind is DdlKind.DROP_DATABASE:
            self._keys = {of: keys for of, keys in self._keys.items() if of[0] != name[0]}
        elif single.kind is DdlKind.RENAME_TABLE and single.to is not None:
            self._rename(name, single.to, followed)
        elif not self._names.leaves_out(single.db, single.table):
            return
        elif single.kind is DdlKind.DROP_TABLE:
            self._put(name, ())
        elif single.kind in (DdlKind.CREATE_TABLE, DdlKind.CREATE_TABLE_LIKE):
            is_sure = not any(token.is_word("EXISTS") for token in single.tokens[:5])
            old = () if is_sure else self._keys.get(name, ())
            new = _read_keys((single.db, single.table), single.tokens) if single.kind is DdlKind.CREATE_TABLE else ()
            self._put(name, (*old, *new))
        elif single.kind is DdlKind.ALTER_TABLE:
            for clause in split_list(single.tokens[SPECS_AT:]):
                self._alter(name, (single.db, single.table), clause)

    def _rename(self, old: Name, to: Name, followed: Callable[[], Sequence[TableDescription]]) -> None:
        """The keys of other tables follow their parent, whose new name is in no text."""
        moved = tuple(replace(key, child=to) for key in self._keys.get(old, ()))
        self._put(old, ())
        self._put(fold_pair(to), moved)
        if old in self._altered:
            self._altered |= {fold_pair(to)}
        texts = [table for table in followed() if "REFERENCES" in table.create]
        keys = [key for table in texts for key in find_cascades((table.db, table.name), table.create)]
        keys += [key for keys in self._keys.values() for key in keys]
        parents = {fold_pair(key.parent) for key in keys} | {fold_pair(new) for _, new in self._renamed}
        if old in parents and (old, fold_pair(to)) not in self._renamed:
            self._renamed = (*self._renamed, (old, fold_pair(to)))

    def _list_later_names(self, name: Name) -> list[Name]:
        """The names that a table, or one that had its name before, got later."""
        known = [fold_pair(name)]
        for of in known:
            known += [new for old, new in self._renamed if old == of and new not in known]
        return known[1:]

    def _alter(self, name: Name, child: Name, clause: Sequence[Token]) -> None:
        keys = self._keys.get(name, ())
        if clause[0].is_word("CHANGE") or (
            len(clause) > 1 and clause[0].is_word("RENAME") and clause[1].is_word("COLUMN")
        ):
            self._altered |= {name}
        elif clause[0].is_word("DROP") and len(clause) > 2 and clause[1].is_word("FOREIGN", "CONSTRAINT"):
            self._put(name, _drop_key(keys, fold_name(clause[-1].value), any(t.is_word("EXISTS") for t in clause)))
        elif _drops_column(clause) and name not in self._altered:
            self._put(name, tuple(key for key in keys if fold_name(clause[-1].value) not in key.own))
        elif clause[0].is_word("ADD"):
            new = read_foreign_key(child, _find_addition(clause))
            self._put(name, keys if new is None else (*keys, new))

    def _put(self, name: Name, keys: tuple[Cascade, ...]) -> None:
        self._keys.pop(name, None)
        if keys:
            self._keys[name] = keys

    def _record(self, writer: JobWriter, before: Json, text: str) -> list[DefinitionChange]:
        now = self._to_json()
        return [] if now == before else [writer.record_note(self._names, text, None, "", {LEFT_OUT_KEYS: now})]

    def _to_json(self) -> Json:
        return {
            "keys": [asdict(key) for _, keys in sorted(self._keys.items()) for key in keys],
            "altered": sorted(self._altered),
            "renamed": list(self._renamed),
        }

    def _restore(self, state: Json) -> None:
        self._keys = {}
        for stored in state["keys"]:
            key = _parse_key(stored)
            name = fold_pair(key.child)
            self._keys[name] = (*self._keys.get(name, ()), key)
        self._altered = frozenset((db, table) for db, table in state["altered"])
        self._renamed = tuple(((old[0], old[1]), (new[0], new[1])) for old, new in state["renamed"])


def _read_keys(child: Name, create: Sequence[Token]) -> tuple[Cascade, ...]:
    return tuple(read_foreign_keys(child, create))


def _find_addition(clause: Sequence[Token]) -> Sequence[Token]:
    """What an ADD clause adds, without COLUMN IF NOT EXISTS; `split_ddl` has made a clause of each part of a list."""
    at = 1
    while clause[at].is_word("COLUMN", "IF", "NOT", "EXISTS"):
        at += 1
    return clause[at:]


def _drops_column(clause: Sequence[Token]) -> bool:
    return clause[0].is_word("DROP") and len(clause) > 1 and (len(clause) == 2 or clause[1].is_word("COLUMN", "IF"))


def _drop_key(keys: tuple[Cascade, ...], name: str, is_optional: bool) -> tuple[Cascade, ...]:
    """`keys` without the one called `name`. The server chose the names of those without one: such a key is only dropped
    if it can be no other, so that none is missing here."""
    named = tuple(key for key in keys if key.name != name)
    if len(named) < len(keys) or is_optional:
        return named
    unnamed = [key for key in keys if not key.name]
    return tuple(key for key in keys if key is not unnamed[0]) if len(unnamed) == 1 else keys


def _parse_key(stored: Mapping[str, object]) -> Cascade:
    values = {field: tuple(value) if isinstance(value, list) else value for field, value in stored.items()}
    return Cascade(**values)  # type: ignore[arg-type]
