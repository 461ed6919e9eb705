"""Clauses that are written from the source's definition, not the DDL text: bounds of partitions, CHECK constraints.

Bounds: the definition has the computed numbers (`partition.definitions[].less_than`, `in_values`); the text may have
expressions, and one such as `UNIX_TIMESTAMP('2020-01-01')` means a different second in each time zone. Servers compare
partition names without letter case, but MariaDB uses the name as a part of a file name when it exchanges the partition
(error 1025).

CHECK: the text may contain constraints that TiDB ignores, or forms that a server does not support. So they are removed
from the text, and each constraint of the definition is written with TiDB's name, as a table constraint. If
tidb_enable_check_constraint is off, which is the default, TiDB ignores CHECK; then the target gets no constraint
either. Where only the text is known (binlog files, dumps), its constraints are written in the target's words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from binlake.common.sql import Dialect
from binlake.dialect.clauses import drop_introducers
from binlake.dialect.expressions import widen_unsigned
from binlake.dialect.routed import Unmappable
from binlake.dialect.tokens import Token, TokenKind, find_closing, render, tokenize
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name
from binlake.statements.literal import quote_name

_NOT_ENFORCED = re.compile(r"/\*!\d{5,6} NOT ENFORCED \*/")


def put_stored_bounds(tokens: Sequence[Token], table: TableDef | None) -> list[Token]:
    """`tokens` with the stored bounds of `table`'s partitions in place of numeric expressions.

    Bounds of RANGE COLUMNS and LIST COLUMNS stay, because no such column may have a type that depends on a time zone.
    """
    partition = (table.raw.get("partition") if table is not None else None) or {}
    if partition.get("columns"):
        return list(tokens)
    definitions = {definition["name"]["L"]: definition for definition in partition.get("definitions") or ()}
    put: list[Token] = []
    at = 0
    while at < len(tokens):
        start = _find_values(tokens, at)
        definition = definitions.get(fold_name(tokens[at + 1].value)) if start else None
        if not start or definition is None:
            put.append(tokens[at])
            at += 1
            continue
        end = find_closing(tokens, start)
        put += [*tokens[at:start], *_build_stored_bounds(tokens[start + 1 : end], definition, tokens[start])]
        at = end + 1
    return put


def put_stored_partition(spec: Sequence[Token], table: TableDef | None) -> list[Token]:
    """`spec` of an ALTER; in EXCHANGE PARTITION the partition's name is spelled as in `table`."""
    partition = (table.raw.get("partition") if table is not None else None) or {}
    names = {one["name"]["L"]: one["name"]["O"] for one in partition.get("definitions") or ()}
    if len(spec) < 3 or not (spec[0].is_word("EXCHANGE") and spec[1].is_word("PARTITION")):
        return list(spec)
    name = names.get(fold_name(spec[2].value))
    return [*spec[:2], replace(spec[2], kind=TokenKind.NAME, text=quote_name(name)) if name else spec[2], *spec[3:]]


def _find_values(tokens: Sequence[Token], at: int) -> int:
    """Index of the `(` after `PARTITION name VALUES LESS THAN` or `… IN` at `at`; 0 if no such clause is at `at`."""
    rest = tokens[at : at + 6]
    if len(rest) < 5 or not (rest[0].is_word("PARTITION") and rest[2].is_word("VALUES")):
        return 0
    start = at + (5 if rest[3].is_word("LESS") else 4)
    return start if start < len(tokens) and tokens[start].is_mark("(") else 0


def _build_stored_bounds(inner: Sequence[Token], definition: Mapping[str, Any], opening: Token) -> list[Token]:
    less, values = definition.get("less_than") or (), definition.get("in_values") or ()
    bounds = [*less] if less else [value[0] for value in values]
    expression = any(token.kind is TokenKind.WORD and not token.is_word("MAXVALUE", "NULL") for token in inner)
    if not expression or not bounds:
        return [opening, *inner, Token(TokenKind.MARK, ")")]
    return [opening, *tokenize(", ".join(bounds)), Token(TokenKind.MARK, ")")]


@dataclass(frozen=True)
class _Check:
    name: str
    expression: str
    enforced: bool


def drop_checks(part: Sequence[Token]) -> list[Token]:
    """An element of CREATE TABLE, or a column definition, without its CHECK clauses; empty if nothing else remains."""
    kept: list[Token] = []
    at = 0
    while at < len(part):
        if part[at].is_mark("("):
            end = find_closing(part, at)
            kept += part[at : end + 1]
            at = end + 1
        elif part[at].is_word("CHECK") and at + 1 < len(part) and part[at + 1].is_mark("("):
            _drop_constraint_word(kept)
            at = _skip_enforced(part, find_closing(part, at + 1) + 1)
        else:
            kept.append(part[at])
            at += 1
    return kept


def _drop_constraint_word(kept: list[Token]) -> None:
    named = next((n for n in (1, 2) if len(kept) >= n and kept[-n].is_word("CONSTRAINT")), 0)
    del kept[len(kept) - named :]


def _skip_enforced(part: Sequence[Token], at: int) -> int:
    for word in ("NOT", "ENFORCED"):
        following = part[at : at + 2]
        if following and following[0].is_word(word) and (word == "ENFORCED" or following[-1].is_word("ENFORCED")):
            at += 1
    return at


def map_written_checks(part: Sequence[Token], dialect: Dialect) -> list[Token]:
    """An element or column of which no definition is known, with its CHECK clauses as `dialect` writes them.

    MariaDB enforces every CHECK and has no word for it: it gets no CHECK that is not enforced.
    """
    if dialect != "mariadb":
        return list(part)
    kept, at = list[Token](), 0
    while at < len(part):
        checks = part[at].is_word("CHECK") and at + 1 < len(part) and part[at + 1].is_mark("(")
        if not checks:
            kept.append(part[at])
            at += 1
            continue
        end = find_closing(part, at + 1) + 1
        after = _skip_enforced(part, end)
        if any(token.is_word("NOT") for token in part[end:after]):
            _drop_constraint_word(kept)
        else:
            kept += drop_introducers(part[at:end], dialect)
        at = after
    return kept


def map_written_check_spec(spec: Sequence[Token], dialect: Dialect) -> list[Token] | None:
    """The spec for a spec that adds, alters or drops only a CHECK of which no definition is known; None for another.

    It is empty if the target needs none. Raises Unmappable for a CHECK that MariaDB would have to add by its name.
    """
    if len(spec) < 2 or not spec[1].is_word("CHECK", "CONSTRAINT") or dialect != "mariadb":
        return None
    if spec[0].is_word("ALTER"):
        if not any(token.is_word("NOT") for token in spec[2:]):
            raise Unmappable("ALTER CHECK … ENFORCED of a constraint whose expression is not in the text")
        return tokenize(f" DROP CONSTRAINT IF EXISTS {spec[2].text}")
    if spec[0].is_word("DROP"):
        return tokenize(f" DROP CONSTRAINT IF EXISTS {spec[2].text}")
    mapped = map_written_checks(spec, dialect)
    return [] if len(mapped) < 2 else mapped


def unwrap_not_enforced(tokens: Sequence[Token]) -> list[Token]:
    """`tokens` with the words NOT ENFORCED, which TiDB and MySQL show in a comment with a version."""
    put = list[Token]()
    for token in tokens:
        put += tokenize(" NOT ENFORCED") if _NOT_ENFORCED.fullmatch(token.text) else [token]
    return put


def is_check_spec(spec: Sequence[Token], before: TableDef | None) -> bool:
    """True for a spec of ALTER TABLE that only adds, alters or drops a CHECK."""
    if len(spec) < 2 or not spec[1].is_word("CHECK", "CONSTRAINT"):
        return False
    if spec[0].is_word("ADD"):
        return not drop_checks(spec[1:])
    if spec[0].is_word("ALTER"):
        return True
    known = before is not None and len(spec) > 2 and fold_name(spec[-1].value) in _read_checks(before)
    return spec[0].is_word("DROP") and (spec[1].is_word("CHECK") or known)


def build_check_elements(table: TableDef, dialect: Dialect) -> list[list[Token]]:
    """The elements of CREATE TABLE for the checks of `table`; MariaDB gets only enforced checks."""
    return [_build_element(check, table, dialect) for check in _select_expressible_checks(table, dialect).values()]


def build_check_specs(before: TableDef | None, after: TableDef, dialect: Dialect) -> list[list[Token]]:
    """The specs of ALTER TABLE that change the checks of `before` to those of `after`."""
    had, has = ({} if t is None else _select_expressible_checks(t, dialect) for t in (before, after))
    word = "CONSTRAINT" if dialect == "mariadb" else "CHECK"
    gone = [tokenize(f" DROP {word} {quote_name(check.name)}") for key, check in had.items() if key not in has]
    new = [[*tokenize(" ADD"), *_build_element(check, after, dialect)] for key, check in has.items() if key not in had]
    switched = [check for key, check in has.items() if key in had and had[key].enforced != check.enforced]
    return [
        *gone,
        *new,
        *(tokenize(f" ALTER CHECK {quote_name(c.name)}{_format_enforced(c, always=True)}") for c in switched),
    ]


def _select_expressible_checks(table: TableDef, dialect: Dialect) -> dict[str, _Check]:
    checks = _read_checks(table)
    return {key: check for key, check in checks.items() if check.enforced or dialect != "mariadb"}


def _read_checks(table: TableDef) -> dict[str, _Check]:
    return {raw["constraint_name"]["L"]: _read_check(raw) for raw in table.raw.get("constraint_info") or ()}


def _read_check(raw: Mapping[str, object]) -> _Check:
    name: Mapping[str, str] = raw["constraint_name"]  # type: ignore[assignment]
    return _Check(name["O"], str(raw["expr_string"]), bool(raw["enforced"]))


def _build_element(check: _Check, table: TableDef, dialect: Dialect) -> list[Token]:
    enforced = "" if dialect == "mariadb" else _format_enforced(check)
    expression = render(widen_unsigned(tokenize(check.expression), table, dialect))
    tokens = tokenize(f" CONSTRAINT {quote_name(check.name)} CHECK ({expression}){enforced}")
    return drop_introducers(tokens, dialect)


def _format_enforced(check: _Check, *, always: bool = False) -> str:
    if check.enforced:
        return " ENFORCED" if always else ""
    return " NOT ENFORCED"
