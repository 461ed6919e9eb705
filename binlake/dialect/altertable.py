"""Write an ALTER TABLE in the dialect of the target, so that rows that exist get the values that the source gave them.

`map_alter_table` writes the clauses; `build_alter_statements` makes the statements that the target runs from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from binlake.common.sql import Dialect
from binlake.dialect.classify import Classified
from binlake.dialect.clauses import (
    build_foreign_key_indexes,
    drop_float_bounds,
    map_element,
    map_tidb_column,
    spell_foreign_key,
)
from binlake.dialect.conversions import AlterTable, add_index_tokens, drop_index_tokens, find_dropped_indexes
from binlake.dialect.defaults import build_fill_specs, find_fill_times, put_stored_set_default
from binlake.dialect.definedclauses import (
    build_check_specs,
    drop_checks,
    is_check_spec,
    map_written_check_spec,
    map_written_checks,
    put_stored_partition,
)
from binlake.dialect.expressions import makes_expression_index, names_expression_index
from binlake.dialect.givenvalues import (
    build_once_computed_specs,
    build_reader_specs,
    find_computed_once,
    list_requirements,
    reads_clock,
    require_no_filled_operands,
    require_no_unlogged_values,
)
from binlake.dialect.routed import RoutedDdl, Unmappable, find_altered_table, find_table
from binlake.dialect.tokens import (
    Token,
    TokenKind,
    find_closing,
    join_list,
    render,
    split_list,
    split_partitioning,
    tokenize_with_spaces,
)
from binlake.dialect.wholetexts import (
    build_key_specs,
    makes_whole_text_key,
    names_whole_text_key,
    spell_default_of_text,
)
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema.forms import fold_name
from binlake.statements.literal import quote

NO_EXPRESSION_INDEX = "MariaDB has no index on an expression"
NO_WHOLE_TEXT_KEY = "MySQL has no unique key on a whole text"


def map_alter_table(tokens: list[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect) -> list[Token]:
    """The tokens of an ALTER TABLE as the target writes them, without what it has no words for. Raises Unmappable."""
    table = find_altered_table(statement, ddl)
    before = find_table(ddl.before, statement, ddl)
    listed, partitioning = split_partitioning(tokens[statement.rest :])
    parts = [part for spec in split_list(listed) for part in _split_added_columns(spec)]
    kept = [p for p in parts if not explain_left_out_index(p, ddl, dialect)]
    kept = [p for p in kept if table is None or not is_check_spec(p, before)]
    kept = [put_stored_partition(spell_foreign_key(part, before), before) for part in kept]
    specs = [_map_spec(part, before, table, dialect) for part in kept]
    specs += [[*tokenize_with_spaces("ADD"), *index] for index in build_foreign_key_indexes(parts, before, table)]
    specs += build_check_specs(before, table, dialect) if table is not None else []
    specs += [_map_spec(part, before, table, dialect) for part in build_reader_specs(before, table, parts, dialect)]
    specs += build_key_specs(before, table, parts) if dialect == "mysql" else []
    specs += _narrow_unique_keys(before, table, parts) if dialect == "mariadb" else []
    return [*tokens[: statement.rest], *join_list([spec for spec in specs if spec]), *partitioning]


def _narrow_unique_keys(
    before: TableDef | None, after: TableDef | None, parts: Sequence[Sequence[Token]]
) -> list[list[Token]]:
    """Drops and adds the unique keys that lose a column and stay: else MariaDB refuses to drop the column (1072)."""
    if before is None or after is None:
        return []
    stay, dropped = {column.id for column in after.columns}, find_dropped_indexes(parts)
    gone = {fold_name(column.name) for column in before.columns if column.id not in stay}
    # An integer primary key, which this one may become, is not among a table's indexes.
    now = {fold_name(index.name): index for index in after.list_unique_keys()}
    return [
        spec
        for was in before.list_unique_keys()
        if gone & {fold_name(column.name) for column in was.columns}
        if (index := now.get(name := fold_name(was.name))) is not None and name not in dropped
        for spec in (drop_index_tokens(was.name, was), add_index_tokens(index))
    ]


def build_alter_statements(
    mapped: list[Token], statement: Classified, ddl: RoutedDdl, dialect: Dialect
) -> tuple[str, ...]:
    """The statements of one ALTER TABLE; values that it fills or converts become what they became in the source's
    session."""
    listed, partitioning = split_partitioning(mapped[statement.rest :])
    head, specs = mapped[: statement.rest], split_list(listed)
    before, after = find_table(ddl.before, statement, ddl), find_altered_table(statement, ddl)
    alter = (
        AlterTable(head, before, after, ddl.after.session, dialect)
        if before is not None and after is not None
        else None
    )
    added = _find_added_columns(ddl)
    plain = find_computed_once(before, after, ddl.after.session, dialect)
    clock = find_fill_times(added)
    if len(clock) > 1 and dialect == "tidb":
        raise Unmappable("several new columns that the source filled with different times")
    specs, later = build_fill_specs(specs, added, len(clock) > 1, dialect)
    specs, frozen = build_once_computed_specs(specs, plain, dialect)
    later += [join_list(frozen)] if frozen else []  # together: an ALTER computes those anew that are still generated
    converted = alter.find_conversions(specs) if alter is not None else []
    if partitioning and not converted:
        specs[-1] = [*specs[-1], *partitioning]
    elif partitioning:
        # A conversion takes several statements; the partitioning is about their result.
        later = [*later, partitioning]
    # As in the source's session: values are cut, times rounded, CHARs padded. A TiDB was strict or said so.
    sets = bool(plain) and (ddl.after.session.is_lenient or (alter is not None and alter.is_native))
    if alter is not None and (converted or sets or alter.may_change_values(specs)):
        if clock and not alter.can_fill_times(converted):
            raise Unmappable("a conversion of values together with a new column that has the current time as default")
        texts = alter.build_statements(specs, converted, has_time=bool(clock))
    else:
        texts = (render([*head, *join_list(specs)]),)
    texts = _run_at_sources_time(texts, clock, added, ddl)
    name, session = render(head[2:]).strip(), ddl.after.session
    required = list_requirements(name, before, after, session) if before and after else []
    required += require_no_unlogged_values(name, plain, after, session, dialect)
    required += require_no_filled_operands(name, before, after, session, dialect)
    return (*required, *texts, *(render([*head, *spec]) for spec in later))


def _run_at_sources_time(
    texts: tuple[str, ...], clock: Sequence[str], added: Sequence[ColumnInfo], ddl: RoutedDdl
) -> tuple[str, ...]:
    """`texts`, at the time `clock` with which the source filled a new column, or at that of its session if a default of
    the new columns reads the clock."""
    moment = f"UNIX_TIMESTAMP({quote(clock[0])})" if clock else ddl.after.session.moment
    if len(clock) == 1 or (moment and not clock and any(map(reads_clock, added))):
        return (f"SET SESSION timestamp = {moment}", *texts, "SET SESSION timestamp = DEFAULT")
    return texts


def _find_added_columns(ddl: RoutedDdl) -> list[ColumnInfo]:
    """The columns that the DDL, an ALTER, adds to a table."""
    had = {column.id for table in ddl.before.tables for column in table.columns}
    return [c for table in ddl.after.tables for c in table.columns if ddl.before.tables and c.id not in had]


def _split_added_columns(spec: list[Token]) -> list[list[Token]]:
    """Split `ADD [COLUMN] (a …, b …)` into one spec per column."""
    start = 2 if len(spec) > 1 and spec[1].is_word("COLUMN") else 1
    if len(spec) <= start or not spec[0].is_word("ADD") or not spec[start].is_mark("("):
        return [spec]
    inside = split_list(spec[start + 1 : find_closing(spec, start)])
    # An element of the list may be an index, which takes no keyword COLUMN.
    words_of = [
        tokenize_with_spaces("ADD COLUMN") if part and part[0].kind is TokenKind.NAME else tokenize_with_spaces("ADD")
        for part in inside
    ]
    return [[*head, replace(part[0], space=True), *part[1:]] for head, part in zip(words_of, inside, strict=True)]


def put_stored_defaults_into_alter(specs: Sequence[Token], table: TableDef) -> list[Token]:
    """The clauses of an ALTER TABLE for a TiDB target, with the stored defaults of `table`."""
    return join_list([_put_default_into_spec(part, table) for part in split_list(specs)])


def _put_default_into_spec(part: list[Token], table: TableDef) -> list[Token]:
    column = _find_column_definition(part)
    if column:
        return [*part[: len(part) - len(column)], *map_tidb_column(column, table)]
    return _set_default(part, table)


def _set_default(part: list[Token], table: TableDef) -> list[Token]:
    """Put the stored value into `ALTER [COLUMN] name SET DEFAULT value`."""
    if len(part) < 4 or not part[0].is_word("ALTER"):
        return part
    return put_stored_set_default(part, table.find_column(part[1 + part[1].is_word("COLUMN")].value))


def explain_empty_alter(specs: Sequence[Token], ddl: RoutedDdl, dialect: Dialect) -> str:
    """The reason why nothing remains of the clauses `specs` for the target."""
    reasons = (explain_left_out_index(part, ddl, dialect) for part in split_list(specs))
    return next(filter(None, reasons), "only options of TiDB remain, nothing for the target")


def explain_left_out_index(tokens: Sequence[Token], ddl: RoutedDdl, dialect: Dialect) -> str:
    """Why the target goes without the index that a clause is about; "" for any other clause."""
    before, after = ddl.before.tables, ddl.after.tables
    if dialect == "mariadb" and (makes_expression_index(tokens) or names_expression_index(tokens, before)):
        return NO_EXPRESSION_INDEX
    if dialect == "mysql" and (makes_whole_text_key(tokens, after) or names_whole_text_key(tokens, before)):
        return NO_WHOLE_TEXT_KEY
    return ""


def _map_spec(part: list[Token], before: TableDef | None, table: TableDef | None, dialect: Dialect) -> list[Token]:
    if part and part[0].is_word("ALGORITHM", "LOCK"):
        return []
    if len(part) > 1 and part[-1].is_word("VALIDATION") and part[-2].is_word("WITH", "WITHOUT"):
        return part[:-2]
    if dialect == "mysql" and table is not None and (spelled := spell_default_of_text(part, table)) is not None:
        return spelled
    column = _find_column_definition(part)
    if column and table is not None:
        plain = drop_checks(column)
        if not table.source and (part[0].is_word("ADD") or _keeps_values(column[0].value, before, table)):
            plain = drop_float_bounds(plain)
        return map_element([*part[: len(part) - len(column)], *plain], plain, table, dialect)
    if table is not None:
        return map_element(_set_default(part, table), column, table, dialect)
    spec = map_written_check_spec(part, dialect)
    mapped = map_written_checks(part, dialect) if spec is None else spec
    return map_element(mapped, _find_column_definition(mapped), None, dialect) if mapped else []


def _keeps_values(name: str, before: TableDef | None, after: TableDef) -> bool:
    """Whether MODIFY or CHANGE leaves a column's type and scale. Otherwise (M,D) has to stay: the target rounds too."""
    now = after.find_column(name)
    former = next((c for c in before.columns if now is not None and c.id == now.id), None) if before else None
    return now is not None and former is not None and (former.tp, former.decimal) == (now.tp, now.decimal)


def _find_column_definition(part: list[Token]) -> list[Token] | None:
    """The column definition inside `ADD|MODIFY|CHANGE [COLUMN] …`, from the new name on."""
    if not part or not part[0].is_word("ADD", "MODIFY", "CHANGE"):
        return None
    at = 1
    while at < len(part) and part[at].is_word("COLUMN", "IF", "NOT", "EXISTS"):
        at += 1
    named = at > 1 or not part[0].is_word("ADD")
    at += part[0].is_word("CHANGE")
    kinds = (TokenKind.NAME, TokenKind.WORD) if named else (TokenKind.NAME,)
    return part[at:] if at < len(part) and part[at].kind in kinds else None
