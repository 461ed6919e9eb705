"""Changes of rows that no log shows: by EXCHANGE PARTITION, and between a followed table and one that is left out.

EXCHANGE PARTITION becomes TiDB's job of it: the plain table and the partition swap ids. No definition changes, so the
tracker does not run it. The rows move with their ids; every later part treats the job like one of TiDB. A statement
that moves rows between a followed table and one that is left out is refused.

Rows of followed tables may also change through the foreign keys of tables that are left out. A followed table's own
keys are in its definition. Of the tables that are left out only this is kept: at the first start from their
definitions, then from the statements of the log. Every change of it is a job that has no effect downstream, like those
of online-DDL tools, and has all of it: so it is what the last of these jobs says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from binlake.dialect.classify import DdlKind, NameRef, classify_tokens, read_name
from binlake.dialect.tokens import Token, split_list, tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.cascades import (
    Cascade,
    Name,
    find_cascades,
    read_foreign_key,
    read_foreign_keys,
    trace_cascades,
)
from binlake.mysqlbinlog.definitions.descriptions import TableDescription
from binlake.mysqlbinlog.definitions.partitions import exchange_ids
from binlake.mysqlbinlog.definitions.statements import SingleStatement
from binlake.mysqlbinlog.definitions.writer import DefinitionChange, JobWriter, SourceNames, read_source
from binlake.rows.schema import Action, TableDef
from binlake.rows.schema.forms import Json, fold_name, fold_pair
from binlake.statements.literal import quote_name, quote_qualified_name

SPECS_AT = len(tokenize("ALTER TABLE `d`.`t`"))
"""Index of the first token of the clauses of a single ALTER TABLE."""

_NEW_LOAD = (
    "follow both tables or leave out both (ignore-tables), and take a new snapshot of the source after this statement"
    " (binlake bootstrap)"
)

LEFT_OUT_KEYS = "left-out-keys"
"""The field of a job's `feeder`."""


def is_left_out(names: SourceNames, single: SingleStatement) -> bool:
    """Whether `single` is about a table that is left out. Raises SchemaError if it also changes a followed one."""
    if not names.leaves_out(single.db, single.table):
        return False
    own = (single.db, single.table)
    if single.kind is DdlKind.RENAME_TABLE and single.to is not None and not names.leaves_out(*single.to):
        raise _build_error(
            "a table that is left out gets the name of one that is followed, but its rows were not replicated",
            own, single.to, _NEW_LOAD,
        )  # fmt: skip
    specs = single.tokens[SPECS_AT:]
    if single.kind is DdlKind.ALTER_TABLE and is_exchange(specs):
        other = read_exchange(specs, single.db)[1]
        if not names.leaves_out(*other):
            raise _build_error(
                "rows are exchanged between a table that is left out and one that is followed: they are not logged",
                own, other, _NEW_LOAD,
            )  # fmt: skip
    return True


def refuse_leaving(names: SourceNames, single: SingleStatement) -> None:
    """Raises SchemaError if a followed table gets a name that is left out: its later changes would be missed."""
    if single.to is not None and names.leaves_out(*single.to):
        raise _build_error(
            "a table that is followed gets a name that is left out", (single.db, single.table), single.to,
            "name its transaction in [[source.replace]] of feeder.toml with DROP TABLE of this table (then the target"
            " drops it, too), or change ignore-tables",
        )  # fmt: skip


def refuse_copied_definition(names: SourceNames, single: SingleStatement) -> None:
    """Raises SchemaError for CREATE TABLE ... LIKE a table that is left out: its definition is not known here."""
    model = _read_model(single)
    if model is not None and names.leaves_out(*model):
        raise _build_error(
            "a table is created like one that is left out, whose definition is not known here",
            (single.db, single.table), model,
            "name its transaction in [[source.replace]] of feeder.toml with the CREATE TABLE that SHOW CREATE TABLE"
            " shows",
        )  # fmt: skip


def _read_model(single: SingleStatement) -> tuple[str, str] | None:
    """The table of LIKE in a CREATE TABLE; None if it has none."""
    if single.kind is not DdlKind.CREATE_TABLE_LIKE:
        return None
    rest = classify_tokens(single.tokens).rest
    like = next(at for at in range(rest, len(single.tokens)) if single.tokens[at].is_word("LIKE"))
    name, _ = read_name(single.tokens, like + 1)
    return None if name is None else (name[0] or single.db, name[1])


def _build_error(what: str, own: NameRef, other: NameRef, hint: str) -> SchemaError:
    return SchemaError(what, where={"table": ".".join(own), "other": ".".join(other)}, hint=hint)


def is_exchange(clauses: Sequence[Token]) -> bool:
    """Whether the clauses of an ALTER exchange the rows of a partition with those of a table."""
    return len(clauses) > 1 and clauses[0].is_word("EXCHANGE") and clauses[1].is_word("PARTITION")


def read_exchange(clauses: Sequence[Token], db: str) -> tuple[str, tuple[str, str], Sequence[Token]]:
    """Partition, table and the rest of `EXCHANGE PARTITION name WITH TABLE [db.]table [WITHOUT VALIDATION]`; `db`: the
    database of a table without one."""
    table, end = read_name(clauses, 5)
    assert table is not None
    return clauses[2].value, (table[0] or db, table[1]), clauses[end:]


def exchange_partition(
    writer: JobWriter, names: SourceNames, altered: tuple[str, TableDef], clauses: Sequence[Token]
) -> DefinitionChange:
    """The change that the clauses make. `altered`: the partitioned table and its database's name at the source.

    Raises SchemaError if the feeder does not have the other table, or does not know the partition.
    """
    db, former = altered
    partition, name, validation = read_exchange(clauses, db)
    other = None if names.leaves_out(*name) else writer.find_table(names, *name)
    info = exchange_ids(former, partition, other) if other is not None else None
    if other is None or info is None:
        lacks = f"table {'.'.join(name)}" if other is None else f"partition {partition}"
        raise SchemaError(
            f"rows are exchanged with the {lacks}, which the feeder does not have: they are not logged",
            hint="exclude both tables (ignore-tables), or take a new snapshot of the source after this statement"
            " (binlake bootstrap)",
            where={"table": f"{db}.{former.name}"},
        )
    partitioned, plain = (quote_qualified_name(table.db, table.name) for table in (former, other))
    text = f"ALTER TABLE {partitioned} EXCHANGE PARTITION {quote_name(partition)} WITH TABLE {plain}"
    home = writer.find_database_of(other)
    return writer.build_change(names, Action.EXCHANGE_PARTITION, [*tokenize(text), *validation], home, other, info)


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
