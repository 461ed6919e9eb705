"""Write CHECK constraints from the source's definitions instead of the DDL text.

The text may contain constraints that TiDB ignores, or forms that a server does not support. So they are removed from
the text, and each constraint of the definition is written with TiDB's name, as a table constraint. If
tidb_enable_check_constraint is off, which is the default, TiDB ignores CHECK; then the target gets no constraint
either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from binlake.base.dialects import Dialect
from binlake.dialect.clauses import drop_introducers
from binlake.dialect.tokens import Token, find_closing, tokenize
from binlake.rows.schema import TableDef
from binlake.rows.schema.names import fold_name
from binlake.statements.literal import quote_name


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


def make_check_elements(table: TableDef, dialect: Dialect) -> list[list[Token]]:
    """The elements of CREATE TABLE for the checks of `table`; MariaDB gets only enforced checks."""
    return [_make_element(check, dialect) for check in _select_expressible_checks(table, dialect).values()]


def make_check_specs(before: TableDef | None, after: TableDef, dialect: Dialect) -> list[list[Token]]:
    """The specs of ALTER TABLE that change the checks of `before` to those of `after`."""
    had, has = ({} if t is None else _select_expressible_checks(t, dialect) for t in (before, after))
    word = "CONSTRAINT" if dialect == "mariadb" else "CHECK"
    gone = [tokenize(f" DROP {word} {quote_name(check.name)}") for key, check in had.items() if key not in has]
    new = [[*tokenize(" ADD"), *_make_element(check, dialect)] for key, check in has.items() if key not in had]
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


def _make_element(check: _Check, dialect: Dialect) -> list[Token]:
    enforced = "" if dialect == "mariadb" else _format_enforced(check)
    tokens = tokenize(f" CONSTRAINT {quote_name(check.name)} CHECK ({check.expression}){enforced}")
    return drop_introducers(tokens, dialect)


def _format_enforced(check: _Check, *, always: bool = False) -> str:
    if check.enforced:
        return " ENFORCED" if always else ""
    return " NOT ENFORCED"
