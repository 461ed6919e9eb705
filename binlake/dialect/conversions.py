"""Write the statements of an ALTER TABLE that converts column values as TiDB does (hazards R-29, `casting`).

If the target converts in the same way, its ALTER runs in a session like the source's. If an expression is needed, it
fills a new column next to the old one (a shadow column, see `SHADOW`), and a final ALTER replaces the old column by it.
Where no expression is known, Binlake converts the values and writes them into the shadow column (`CastStep`). Until the
last statement the table has its old column, and the statements can run again from the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from binlake.common.sql import Dialect
from binlake.dialect.casting import find_fixed_offset, find_type_group, needs_day, needs_zone
from binlake.dialect.collations import find_target_charset, find_target_collation
from binlake.dialect.families import Way, choose_way
from binlake.dialect.routed import Unmappable
from binlake.dialect.tokens import Token, join_list, render, tokenize, tokenize_with_spaces
from binlake.rows.codec.casts import derive_cast_form
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import PUBLIC, SourceSession
from binlake.statements.ddlsteps import CastStep
from binlake.statements.literal import quote, quote_name

SHADOW = "_binlake_cast_"
"""Prefix of the name of a shadow column, which contains the converted values until it replaces the old column."""

_LENIENT = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
_LENIENT_NATIVE = "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
_MODES = {
    1 << 6: "NO_UNSIGNED_SUBTRACTION", 1 << 23: "NO_ZERO_IN_DATE", 1 << 24: "NO_ZERO_DATE",
    1 << 25: "ALLOW_INVALID_DATES", 1 << 31: "PAD_CHAR_TO_FULL_LENGTH",
}  # fmt: skip
"""Bits of sql_mode that affect converted or computed values in lenient sessions, in both families."""
_TRUNCATES, _ROUNDS = 1 << 32, 1 << 34
"""MySQL's TIME_TRUNCATE_FRACTIONAL, MariaDB's TIME_ROUND_FRACTIONAL."""
_PRIMARY = "primary"
"""The folded name of every primary key."""
_SAVE = "SET @binlake_sql_mode = @@SESSION.sql_mode, @binlake_time_zone = @@SESSION.time_zone"
_RESTORE = (
    "SET SESSION timestamp = DEFAULT, sql_mode = IFNULL(@binlake_sql_mode, @@SESSION.sql_mode),"
    " time_zone = IFNULL(@binlake_time_zone, @@SESSION.time_zone)"
)
RESTORES = "SET SESSION timestamp = DEFAULT"
"""Beginning of a statement that restores the session settings a DDL changed; it must run even if the DDL fails."""


@dataclass(frozen=True)
class Conversion:
    """The spec at index `place` converts column `source` to `target` in the given way."""

    place: int
    source: ColumnInfo
    target: ColumnInfo
    way: Way


@dataclass(frozen=True)
class AlterTable:
    """An ALTER TABLE of the source: its tokens up to the specs (`head`), the table before and after it, its session.

    `dialect`: the target's.
    """

    head: Sequence[Token]
    before: TableDef
    after: TableDef
    session: SourceSession
    dialect: Dialect

    def find_conversions(self, specs: Sequence[Sequence[Token]]) -> list[Conversion]:
        """The conversions that the specs make. Raises Unmappable for one that the target cannot make."""
        conversions: list[Conversion] = []
        for place, spec in enumerate(specs):
            names = _read_column_names(spec)
            source = self.before.find_column(names[0]) if names else None
            target = self.after.find_column(names[1]) if names else None
            if (
                source is None
                or target is None
                or derive_cast_form(source) == derive_cast_form(target)
                or target.is_generated
            ):
                continue
            name = quote_name(source.name)
            way = choose_way(name, source, target, self.session, self.dialect)
            conversions.append(Conversion(place, source, target, way))
        return conversions

    def may_change_values(self, specs: Sequence[Sequence[Token]]) -> bool:
        """Whether it may change values without a conversion, in a source session that did not treat this as an error:
        a column becomes shorter (in a MySQL or MariaDB also NOT NULL), or gets another character set."""
        now = {column.id: column for column in self.after.columns}
        pairs = [(column, now[column.id]) for column in self.before.columns if column.id in now]
        # TiDB gives a column that it writes again a new id, so the names in the text tell which column it was.
        named = [names for spec in specs if (names := _read_column_names(spec))]
        pairs += [
            (former, column)
            for old, new in named
            if (former := self.before.find_column(old)) and (column := self.after.find_column(new))
        ]
        return (self.is_native or self.session.lenient) and any(
            _describe_storage(former) != _describe_storage(column) for former, column in pairs
        )

    def can_fill_times(self, conversions: Sequence[Conversion]) -> bool:
        """Whether the session's time can fill new columns, because no conversion of `conversions` needs it."""
        return self.is_native and not any(
            needs_zone(conversion.source, conversion.target) or needs_day(conversion.source, conversion.target)
            for conversion in conversions
        )

    def build_statements(
        self, specs: list[list[Token]], conversions: Sequence[Conversion], *, has_time: bool = False
    ) -> tuple[str, ...]:
        """The statements for the mapped `specs`, which make `conversions` or change values (`may_change_values`).

        `has_time`: the session's time is already set. Raises Unmappable.
        """
        if all(one.way == Way() for one in conversions):
            plain = self._build_settings(conversions, has_time)
            alter = render([*self.head, *join_list(specs)])
            return (*plain, alter, *((_RESTORE,) if plain else ()))
        lenient = (_SAVE, f"SET SESSION sql_mode = {quote(_choose_mode(self.dialect))}")
        return (*lenient, *self._build_statements_with_shadows(specs, conversions), _RESTORE)

    def _build_settings(self, conversions: Sequence[Conversion], has_time: bool) -> tuple[str, ...]:
        """Statements that make the target's session convert like the source's; empty if the result is independent of
        it."""
        if self.is_native:
            return (_SAVE, f"SET SESSION {', '.join(self._list_native_settings(conversions, has_time))}")
        if all(_is_plain(one) for one in conversions) and not self.session.lenient:
            return ()
        keeps_mode = self.dialect == "tidb" and not self.session.lenient
        settings = [] if keeps_mode else [f"sql_mode = {quote(_choose_mode(self.dialect))}"]
        if any(needs_zone(one.source, one.target) for one in conversions):
            settings.append(f"time_zone = {quote(_choose_zone(conversions[0].target, self.session, self.dialect))}")
        sets = [_SAVE, *([f"SET SESSION {', '.join(settings)}"] if settings else [])]
        if any(needs_day(one.source, one.target) for one in conversions):
            if not self.session.day:
                raise Unmappable("a TIME that becomes a date: the day on which the source converted it is not known")
            # Noon falls on the same day in the session's time zone, which is +00:00 or the one set above.
            sets.append(f"SET SESSION timestamp = UNIX_TIMESTAMP({quote(self.session.day + ' 12:00:00')})")
        return tuple(sets)

    @property
    def is_native(self) -> bool:
        """True if source and target are of the MySQL family: the target's ALTER then converts as the source's did."""
        return bool(self.session.family) and self.dialect != "tidb"

    def _list_native_settings(self, conversions: Sequence[Conversion], has_time: bool) -> Iterator[str]:
        """Settings like the source's session: lenient, because the DDL was no error there, and with its rounding of
        times."""
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
            yield f"time_zone = {quote(_choose_zone(conversions[0].target, self.session, self.dialect))}"
        if self.session.moment and not has_time:
            yield f"timestamp = {self.session.moment}"

    def _build_statements_with_shadows(self, specs: list[list[Token]], conversions: Sequence[Conversion]) -> list[str]:
        statements, last = [], list(specs)
        clocks = [quote_name(c.name) for c in self.before.columns if c.flag & t.FLAG_ON_UPDATE_NOW]
        fills = [f"{name} = {name}" for name in clocks]
        remade = self._find_recreated_indexes(specs, [one.target.name for one in conversions])
        dropped = [drop_index_tokens(former, index) for former, index in remade]
        steps: list[str] = []
        for one in conversions:
            name = f"{SHADOW}{one.source.id}_{one.target.id}"
            shadow = quote_name(name)
            if one.way.by_values:
                steps.append(self._build_cast_step(one, name).to_sql())
            else:
                fills.append(f"{shadow} = {one.way.expression or _require_plain_value(one, self.session)}")
            kind = f"{format_type(one.target, self.dialect)} NULL DEFAULT NULL"
            # The shadow column is next to the old one, so that it takes the old position whatever else the ALTER adds,
            # drops, renames or moves. If it exists already from a run that died, MySQL raises an error that may be
            # ignored.
            absent = "" if self.dialect == "mysql" else "IF NOT EXISTS "
            add = tokenize(f" ADD COLUMN {absent}{shadow} {kind} AFTER {quote_name(one.source.name)}")
            statements.append(render([*self.head, *add]))
            dropped.append(tokenize_with_spaces(f"DROP COLUMN {quote_name(one.source.name)}"))
            last[one.place] = [*tokenize_with_spaces(f"CHANGE {shadow}"), *_select_definition(specs[one.place])]
        table = render(self.head[2:])
        if len(fills) > len(clocks):
            statements.append(f"UPDATE {table} SET {', '.join(fills)}")
        statements += steps
        made = {fold_name(index.name) for _, index in remade}
        last = [spec for spec in last if fold_name((_read_index_rename(spec) or ("", ""))[1]) not in made]
        added = [add_index_tokens(index) for _, index in remade]
        statements.append(render([*self.head, *join_list([*dropped, *last, *added])]))
        return statements

    def _build_cast_step(self, one: Conversion, shadow: str) -> CastStep:
        identity = self.before.find_identity()
        known = [self.before.find_column(name) for name in identity.columns] if identity.kind != "row" else []
        clocks = tuple(c.name for c in self.before.columns if c.flag & t.FLAG_ON_UPDATE_NOW)
        key = tuple(column for column in known if column is not None)
        table = render(self.head[2:]).strip()
        return CastStep(table, key, one.source, one.target, shadow, clocks, self.session, self.dialect)

    def _find_recreated_indexes(
        self, specs: Sequence[Sequence[Token]], names: Sequence[str]
    ) -> list[tuple[str, IndexInfo]]:
        """(former name, index) of the indexes that dropping the columns `names` would remove, and of renamed indexes.

        The target would find neither by its new name. Indexes that the specs add or drop are not included.
        """
        renamed = {fold_name(new): old for old, new in filter(None, map(_read_index_rename, specs))}
        gone = {fold_name(old) for old in renamed.values()} | find_dropped_indexes(specs)
        existing = {fold_name(index.name) for index in _list_indexes(self.before)} - gone
        wanted = {index.name for index in _find_touched_indexes(self.after, names)}
        indexes = []
        for index in _list_indexes(self.after):
            name = fold_name(index.name)
            # An index on an expression has a hidden column; it does not contain a converted column.
            plain = all(self.after.find_column(part.name) for part in index.columns)
            if index.state == PUBLIC and plain and name in renamed:
                indexes.append((renamed[name], index))
            elif index.name in wanted and name in existing:
                indexes.append((index.name, index))
        return indexes


def _describe_storage(column: ColumnInfo) -> tuple[str, str, bool]:
    return column.type_text, column.charset, column.not_null


def _is_plain(one: Conversion) -> bool:
    alike = {"text", "binary"}
    groups = {find_type_group(one.source), find_type_group(one.target)}
    return groups <= alike or groups in ({"integer"}, {"enum"}, {"set"}, {"bit"})


def _choose_mode(dialect: Dialect) -> str:
    return f"{_LENIENT},TIME_ROUND_FRACTIONAL" if dialect == "mariadb" else _LENIENT


def _choose_zone(column: ColumnInfo, session: SourceSession, dialect: Dialect) -> str:
    zone = session.tz
    offset = "" if zone is None else find_fixed_offset(zone)
    if dialect == "tidb" and zone is not None:
        return offset or session.zone
    if not offset:
        raise Unmappable(f"values of {column.name}: the target has no zone {session.zone or 'of the source'}")
    return offset


def _require_plain_value(one: Conversion, session: SourceSession) -> str:
    """The old column, if an assignment converts as ALTER does. It runs at +00:00, so the zone must not matter."""
    if needs_zone(one.source, one.target) or needs_day(one.source, one.target):
        raise Unmappable(
            f"values of {one.target.name} that depend on the time zone {session.zone}, together with values of another"
            " column that need an expression"
        )
    return quote_name(one.source.name)


def _list_indexes(table: TableDef) -> list[IndexInfo]:
    """All indexes, with an integer primary key that TiDB's form of a definition does not list as one."""
    return [*table.indexes, *(key for key in table.list_unique_keys() if key not in table.indexes)]


def _find_touched_indexes(after: TableDef, names: Sequence[str]) -> list[IndexInfo]:
    """The indexes that would lose a column if the columns `names` were dropped."""
    wanted = {name.lower() for name in names}
    known = _list_indexes(after)
    return [i for i in known if i.state == PUBLIC and wanted & {part.name.lower() for part in i.columns}]


def _is_of_primary(spec: Sequence[Token], word: str) -> bool:
    return len(spec) > 1 and spec[0].is_word(word) and spec[1].is_word("PRIMARY")


def _is_of_index(spec: Sequence[Token], word: str) -> bool:
    return len(spec) > 2 and spec[0].is_word(word) and spec[1].is_word("INDEX", "KEY")


def find_dropped_indexes(specs: Sequence[Sequence[Token]]) -> set[str]:
    """The (folded) names of the indexes that `specs` drop."""
    dropped = {fold_name(spec[2].value) for spec in specs if _is_of_index(spec, "DROP")}
    return dropped | ({_PRIMARY} if any(_is_of_primary(spec, "DROP") for spec in specs) else set())


def _read_index_rename(spec: Sequence[Token]) -> tuple[str, str] | None:
    """(former, new) name of `RENAME INDEX … TO …`; None for another spec."""
    return (spec[2].value, spec[4].value) if len(spec) > 4 and _is_of_index(spec, "RENAME") else None


def drop_index_tokens(former: str, index: IndexInfo) -> list[Token]:
    """The spec that drops `index`, which is called `former`."""
    return tokenize_with_spaces("DROP PRIMARY KEY" if index.primary else f"DROP INDEX {quote_name(former)}")


def add_index_tokens(index: IndexInfo) -> list[Token]:
    """The spec that adds `index`."""
    parts = ", ".join(quote_name(p.name) + (f"({p.length})" if p.length > 0 else "") for p in index.columns)
    if index.primary:
        return tokenize(f" ADD PRIMARY KEY ({parts})")
    return tokenize(f" ADD {'UNIQUE ' if index.unique else ''}INDEX {quote_name(index.name)} ({parts})")


def format_type(column: ColumnInfo, dialect: Dialect) -> str:
    """The type of a column in a definition for a target of `dialect`, with its character set and collation."""
    if column.tp in (t.ENUM, t.SET):
        text = f"{column.type_name}({', '.join(quote(elem) for elem in column.elems)})"
    else:
        text = column.type_text
    if column.is_binary or not (column.elems or column.tp in t.STRINGS):
        return text
    charset, collate = find_target_charset(column.charset, dialect), find_target_collation(column.collate, dialect)
    return f"{text} CHARACTER SET {charset} COLLATE {collate}"


def _read_column_names(spec: Sequence[Token]) -> tuple[str, str] | None:
    """(former, new) name of the column of `MODIFY [COLUMN] …` and `CHANGE [COLUMN] …`; None for another spec."""
    if not spec or not spec[0].is_word("MODIFY", "CHANGE"):
        return None
    at = 1 + (len(spec) > 1 and spec[1].is_word("COLUMN"))
    named = [token.value for token in spec[at : at + 2]]
    if len(named) < 2:
        return None
    return (named[0], named[1]) if spec[0].is_word("CHANGE") else (named[0], named[0])


def _select_definition(spec: Sequence[Token]) -> list[Token]:
    """The tokens of a mapped spec from the new column name on."""
    at = 1 + spec[1].is_word("COLUMN") + spec[0].is_word("CHANGE")
    return list(spec[at:])
