"""CHECK constraints as the source has them: the text may name some that TiDB passes over, or that a server cannot have.

They are taken out of the text and said by the definitions: each with TiDB's name, as a constraint of the table. TiDB
ignores CHECK where tidb_enable_check_constraint is off, which is its default; then the target gets none either.
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
    """An element of CREATE TABLE, or a column definition, without its CHECK clauses; empty when it is nothing else."""
    kept: list[Token] = []
    at = 0
    while at < len(part):
        if part[at].is_mark("("):
            end = find_closing(part, at)
            kept += part[at : end + 1]
            at = end + 1
        elif part[at].is_word("CHECK") and at + 1 < len(part) and part[at + 1].is_mark("("):
            _drop_constraint_word(kept)
            at = _after_enforced(part, find_closing(part, at + 1) + 1)
        else:
            kept.append(part[at])
            at += 1
    return kept


def _drop_constraint_word(kept: list[Token]) -> None:
    named = next((n for n in (1, 2) if len(kept) >= n and kept[-n].is_word("CONSTRAINT")), 0)
    del kept[len(kept) - named :]


def _after_enforced(part: Sequence[Token], at: int) -> int:
    for word in ("NOT", "ENFORCED"):
        following = part[at : at + 2]
        if following and following[0].is_word(word) and (word == "ENFORCED" or following[-1].is_word("ENFORCED")):
            at += 1
    return at


def is_check_spec(spec: Sequence[Token], before: TableDef | None) -> bool:
    """True for a spec of ALTER TABLE about a CHECK alone: ADD, ALTER, DROP."""
    if len(spec) < 2 or not spec[1].is_word("CHECK", "CONSTRAINT"):
        return False
    if spec[0].is_word("ADD"):
        return not drop_checks(spec[1:])
    if spec[0].is_word("ALTER"):
        return True
    known = before is not None and len(spec) > 2 and fold_name(spec[-1].value) in _checks(before)
    return spec[0].is_word("DROP") and (spec[1].is_word("CHECK") or known)


def check_elements(table: TableDef, dialect: Dialect) -> list[list[Token]]:
    """The elements of CREATE TABLE that say the checks of `table`; MariaDB has none that is not enforced."""
    return [_element(check, dialect) for check in _expressible_checks(table, dialect).values()]


def check_specs(before: TableDef | None, after: TableDef, dialect: Dialect) -> list[list[Token]]:
    """The specs of ALTER TABLE that lead from the checks of `before` to those of `after`."""
    had, has = ({} if t is None else _expressible_checks(t, dialect) for t in (before, after))
    word = "CONSTRAINT" if dialect == "mariadb" else "CHECK"
    gone = [tokenize(f" DROP {word} {quote_name(check.name)}") for key, check in had.items() if key not in has]
    new = [[*tokenize(" ADD"), *_element(check, dialect)] for key, check in has.items() if key not in had]
    turned = [check for key, check in has.items() if key in had and had[key].enforced != check.enforced]
    return [*gone, *new, *(tokenize(f" ALTER CHECK {quote_name(c.name)}{_enforced(c, always=True)}") for c in turned)]


def _expressible_checks(table: TableDef, dialect: Dialect) -> dict[str, _Check]:
    checks = _checks(table)
    return {key: check for key, check in checks.items() if check.enforced or dialect != "mariadb"}


def _checks(table: TableDef) -> dict[str, _Check]:
    return {raw["constraint_name"]["L"]: _check(raw) for raw in table.raw.get("constraint_info") or ()}


def _check(raw: Mapping[str, object]) -> _Check:
    name: Mapping[str, str] = raw["constraint_name"]  # type: ignore[assignment]
    return _Check(name["O"], str(raw["expr_string"]), bool(raw["enforced"]))


def _element(check: _Check, dialect: Dialect) -> list[Token]:
    enforced = "" if dialect == "mariadb" else _enforced(check)
    said = tokenize(f" CONSTRAINT {quote_name(check.name)} CHECK ({check.expression}){enforced}")
    return drop_introducers(said, dialect)


def _enforced(check: _Check, *, always: bool = False) -> str:
    if check.enforced:
        return " ENFORCED" if always else ""
    return " NOT ENFORCED"
