"""ALTER TABLE that converts values of columns: the statements that leave what TiDB leaves (hazards R-29, `casting`).

Where the target converts alike, its own ALTER runs in a session like the source's. Where an expression has to, it fills
a column beside the old one, and one last ALTER puts that in its place: until then the table keeps its old column, and
the statements may run again from the first (`SHADOW` names such a column).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from binlake.base.dialects import Dialect
from binlake.dialect.casting import cast_expression, fixed_offset, group_of, needs_day, needs_zone
from binlake.dialect.collations import target_charset, target_collation
from binlake.dialect.errors import Unmappable
from binlake.dialect.tokens import Token, join_list, render, spaced_tokens, tokenize
from binlake.rows.codec.casts import cast_form
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.actions import PUBLIC
from binlake.rows.schema.names import fold_name
from binlake.rows.schema.session import SourceSession
from binlake.statements.literal import quote, quote_name

SHADOW = "_binlake_cast_"
"""How the name of a column begins that holds converted values until they take the old ones' place."""

_LENIENT = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
_LENIENT_NATIVE = "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
_MODES = {1 << 23: "NO_ZERO_IN_DATE", 1 << 24: "NO_ZERO_DATE", 1 << 25: "ALLOW_INVALID_DATES"}
"""Bits of sql_mode that decide values of lenient sessions, in both families."""
_TRUNCATES, _ROUNDS = 1 << 32, 1 << 34
"""MySQL's TIME_TRUNCATE_FRACTIONAL, MariaDB's TIME_ROUND_FRACTIONAL."""
_KEEP = "SET @binlake_sql_mode = @@SESSION.sql_mode, @binlake_time_zone = @@SESSION.time_zone"
_RESTORE = (
    "SET SESSION timestamp = DEFAULT, sql_mode = IFNULL(@binlake_sql_mode, @@SESSION.sql_mode),"
    " time_zone = IFNULL(@binlake_time_zone, @@SESSION.time_zone)"
)
RESTORES = "SET SESSION timestamp = DEFAULT"
"""How a statement begins that sets back what a DDL set for itself: it must run even where the DDL fails."""


@dataclass(frozen=True)
class Conversion:
    """Column `source` becomes `target` by the spec at `place`; `expression` empty: the target's ALTER does it."""

    place: int
    source: ColumnInfo
    target: ColumnInfo
    expression: str


@dataclass(frozen=True)
class Alter:
    """An ALTER TABLE of the source: its tokens up to the specs (`head`), the table on both sides of it, its session.

    `dialect`: the target's.
    """

    head: Sequence[Token]
    before: TableDef
    after: TableDef
    session: SourceSession
    dialect: Dialect

    def conversions(self, specs: Sequence[Sequence[Token]]) -> list[Conversion]:
        """What the specs convert. Raises Unmappable for what cannot be converted here."""
        conversions: list[Conversion] = []
        for place, spec in enumerate(specs):
            names = _renaming(spec)
            source = self.before.column(names[0]) if names else None
            target = self.after.column(names[1]) if names else None
            if source is None or target is None or cast_form(source) == cast_form(target) or target.is_generated:
                continue
            name = quote_name(source.name)
            expression = "" if self.is_native else cast_expression(name, source, target, self.session, self.dialect)
            conversions.append(Conversion(place, source, target, expression))
        return conversions

    @property
    def changes_values(self) -> bool:
        """Whether it may change values without a conversion, where the source's session made no error of that: a column
        has no NULL any more, is shorter, or has another character set."""
        now = {column.id: column for column in self.after.columns}
        pairs = [(column, now[column.id]) for column in self.before.columns if column.id in now]
        return self.is_native and any(_stored_as(former) != _stored_as(column) for former, column in pairs)

    def can_fill_times(self, conversions: Sequence[Conversion]) -> bool:
        """Whether `conversions` leave the session's time to columns that are filled with it."""
        return self.is_native and not any(
            needs_zone(conversion.source, conversion.target) or needs_day(conversion.source, conversion.target)
            for conversion in conversions
        )

    def statements(
        self, specs: list[list[Token]], conversions: Sequence[Conversion], *, has_time: bool = False
    ) -> tuple[str, ...]:
        """The statements whose specs, mapped, make `conversions`: at least one, or what `changes_values` says.

        `has_time`: the session has its time already. Raises Unmappable.
        """
        if not any(one.expression for one in conversions):
            plain = self._settings(conversions, has_time)
            alter = render([*self.head, *join_list(specs)])
            return (*plain, alter, *((_RESTORE,) if plain else ()))
        lenient = (_KEEP, f"SET SESSION sql_mode = {quote(_mode(self.dialect))}")
        return (*lenient, *self._computed(specs, conversions), _RESTORE)

    def _settings(self, conversions: Sequence[Conversion], has_time: bool) -> tuple[str, ...]:
        """What makes the target's session convert like the source's; nothing where no session decides."""
        if self.is_native:
            return (_KEEP, f"SET SESSION {', '.join(self._native_settings(conversions, has_time))}")
        if all(_is_plain(one) for one in conversions):
            return ()
        settings = [] if self.dialect == "tidb" else [f"sql_mode = {quote(_mode(self.dialect))}"]
        if any(needs_zone(one.source, one.target) for one in conversions):
            settings.append(f"time_zone = {quote(_zone(conversions[0].target, self.session, self.dialect))}")
        sets = [_KEEP, *([f"SET SESSION {', '.join(settings)}"] if settings else [])]
        if any(needs_day(one.source, one.target) for one in conversions):
            if not self.session.day:
                raise Unmappable("a TIME that becomes a date: the day on which the source converted it is not known")
            # Noon is the same day in the session's zone, which is +00:00 or the one set before.
            sets.append(f"SET SESSION timestamp = UNIX_TIMESTAMP({quote(self.session.day + ' 12:00:00')})")
        return tuple(sets)

    @property
    def is_native(self) -> bool:
        """True where source and target are of the MySQL family: the target's own ALTER converts as the source's did."""
        return bool(self.session.family) and self.dialect != "tidb"

    def _native_settings(self, conversions: Sequence[Conversion], has_time: bool) -> Iterator[str]:
        """The source's session; lenient, for what was no error there is none, and families round times differently."""
        modes = [_LENIENT_NATIVE, *(name for bit, name in _MODES.items() if self.session.sql_mode & bit)]
        rounds = self.session.sql_mode & _ROUNDS or (
            self.session.family == "mysql" and not self.session.sql_mode & _TRUNCATES
        )
        if self.dialect == "mariadb":
            modes += ["TIME_ROUND_FRACTIONAL"] if rounds else []
        else:
            modes += [] if rounds else ["TIME_TRUNCATE_FRACTIONAL"]
        yield f"sql_mode = {quote(','.join(modes))}"
        if any(needs_zone(one.source, one.target) for one in conversions):
            yield f"time_zone = {quote(_zone(conversions[0].target, self.session, self.dialect))}"
        if self.session.moment and not has_time:
            yield f"timestamp = {self.session.moment}"

    def _computed(self, specs: list[list[Token]], conversions: Sequence[Conversion]) -> list[str]:
        statements, last = [], list(specs)
        clocks = [quote_name(c.name) for c in self.before.columns if c.flag & t.FLAG_ON_UPDATE_NOW]
        fills = [f"{name} = {name}" for name in clocks]
        remade = self._recreated_indexes(specs, [one.target.name for one in conversions])
        dropped: list[list[Token]] = [spaced_tokens(f"DROP INDEX {quote_name(former)}") for former, _ in remade]
        for one in conversions:
            expression = one.expression or _plain_value(one, self.session)
            shadow = quote_name(f"{SHADOW}{one.source.id}_{one.target.id}")
            kind = f"{_type(one.target, self.dialect)} NULL DEFAULT NULL"
            # Beside the old one, so that it takes its place whatever else the ALTER adds, drops, renames or moves.
            # Where it is there from a run that died, MySQL says so by an error that may be passed over.
            absent = "" if self.dialect == "mysql" else "IF NOT EXISTS "
            add = tokenize(f" ADD COLUMN {absent}{shadow} {kind} AFTER {quote_name(one.source.name)}")
            statements.append(render([*self.head, *add]))
            fills.append(f"{shadow} = {expression}")
            dropped.append(spaced_tokens(f"DROP COLUMN {quote_name(one.source.name)}"))
            last[one.place] = [*spaced_tokens(f"CHANGE {shadow}"), *_definition(specs[one.place])]
        table = render(self.head[2:])
        statements.append(f"UPDATE {table} SET {', '.join(fills)}")
        made = {fold_name(index.name) for _, index in remade}
        last = [spec for spec in last if fold_name((_renamed_index(spec) or ("", ""))[1]) not in made]
        added = [_index(index) for _, index in remade]
        statements.append(render([*self.head, *join_list([*dropped, *last, *added])]))
        return statements

    def _recreated_indexes(self, specs: Sequence[Sequence[Token]], names: Sequence[str]) -> list[tuple[str, IndexInfo]]:
        """(former name, index) of those that the columns `names` would take with them, and of those that are renamed:
        a target finds neither by its new name. What the specs themselves add or drop is theirs."""
        renamed = {fold_name(new): old for old, new in filter(None, map(_renamed_index, specs))}
        gone = {fold_name(old) for old in renamed.values()} | {
            fold_name(spec[2].value) for spec in specs if _is_of_index(spec, "DROP")
        }
        there = {fold_name(index.name) for index in self.before.indexes} - gone
        wanted = {index.name for index in _indexes_of(self.after, names)}
        indexes = []
        for index in self.after.indexes:
            name = fold_name(index.name)
            # One of an expression has a hidden column; it has none of those converted.
            plain = all(self.after.column(part.name) for part in index.columns)
            if index.state == PUBLIC and plain and name in renamed:
                indexes.append((renamed[name], index))
            elif index.name in wanted and name in there:
                indexes.append((index.name, index))
        return indexes


def _stored_as(column: ColumnInfo) -> tuple[str, str, bool]:
    return column.type_text, column.charset, column.not_null


def _is_plain(one: Conversion) -> bool:
    alike = {"text", "binary"}
    groups = {group_of(one.source), group_of(one.target)}
    return groups <= alike or groups in ({"integer"}, {"enum"}, {"set"}, {"bit"})


def _mode(dialect: Dialect) -> str:
    return f"{_LENIENT},TIME_ROUND_FRACTIONAL" if dialect == "mariadb" else _LENIENT


def _zone(column: ColumnInfo, session: SourceSession, dialect: Dialect) -> str:
    zone = session.tz
    offset = "" if zone is None else fixed_offset(zone)
    if dialect == "tidb" and zone is not None:
        return offset or session.zone
    if not offset:
        raise Unmappable(f"values of {column.name}: the target has no zone {session.zone or 'of the source'}")
    return offset


def _plain_value(one: Conversion, session: SourceSession) -> str:
    """The old value where assigning converts as ALTER does: in a session at +00:00, so not where a zone decides."""
    if needs_zone(one.source, one.target) or needs_day(one.source, one.target):
        raise Unmappable(f"values of {one.target.name} together with such of another column; zone {session.zone}")
    return quote_name(one.source.name)


def _indexes_of(after: TableDef, names: Sequence[str]) -> list[IndexInfo]:
    """Indexes that a dropped column would take with it."""
    wanted = {name.lower() for name in names}
    touched = [i for i in after.indexes if i.state == PUBLIC and wanted & {part.name.lower() for part in i.columns}]
    if any(index.primary for index in touched):
        raise Unmappable("a change of values in the primary key")
    return touched


def _is_of_index(spec: Sequence[Token], word: str) -> bool:
    return len(spec) > 2 and spec[0].is_word(word) and spec[1].is_word("INDEX", "KEY")


def _renamed_index(spec: Sequence[Token]) -> tuple[str, str] | None:
    """(former, new) name of `RENAME INDEX … TO …`; None for another spec."""
    return (spec[2].value, spec[4].value) if len(spec) > 4 and _is_of_index(spec, "RENAME") else None


def _index(index: IndexInfo) -> list[Token]:
    parts = ", ".join(quote_name(p.name) + (f"({p.length})" if p.length > 0 else "") for p in index.columns)
    return tokenize(f" ADD {'UNIQUE ' if index.unique else ''}INDEX {quote_name(index.name)} ({parts})")


def _type(column: ColumnInfo, dialect: Dialect) -> str:
    if column.tp in (t.ENUM, t.SET):
        text = f"{column.type_name}({', '.join(quote(elem) for elem in column.elems)})"
    else:
        text = column.type_text
    if column.is_binary or not (column.elems or column.tp in t.STRINGS):
        return text
    charset, collate = target_charset(column.charset, dialect), target_collation(column.collate, dialect)
    return f"{text} CHARACTER SET {charset} COLLATE {collate}"


def _renaming(spec: Sequence[Token]) -> tuple[str, str] | None:
    """(former, new) name of the column of `MODIFY [COLUMN] …` and `CHANGE [COLUMN] …`; None for another spec."""
    if not spec or not spec[0].is_word("MODIFY", "CHANGE"):
        return None
    at = 1 + (len(spec) > 1 and spec[1].is_word("COLUMN"))
    named = [token.value for token in spec[at : at + 2]]
    if len(named) < 2:
        return None
    return (named[0], named[1]) if spec[0].is_word("CHANGE") else (named[0], named[0])


def _definition(spec: Sequence[Token]) -> list[Token]:
    """A mapped spec from the new name on."""
    at = 1 + spec[1].is_word("COLUMN") + spec[0].is_word("CHANGE")
    return list(spec[at:])
