"""Refuses statements that move rows between a table that is followed and one that is left out: no log has such rows."""

from __future__ import annotations

from binlake.dialect.classify import DdlKind, NameRef, classify_tokens, read_name
from binlake.dialect.tokens import tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.statements import SingleStatement
from binlake.mysqlbinlog.definitions.writer import SourceNames
from binlake.pump_service.feeder.exchanging import is_exchange, read_exchange

SPECS_AT = len(tokenize("ALTER TABLE `d`.`t`"))
"""Index of the first token of the clauses of a single ALTER TABLE."""
_NEW_LOAD = (
    "follow both tables or leave out both (ignore-tables), and take a new snapshot of the source after this statement"
    " (binlake bootstrap)"
)


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
