"""Find the kind of a DDL statement, its tables, and the columns that its clauses rename, add or drop.

Kind and tables follow from its first words (never from searching the text). Clauses name columns where column ids do
not show it for every server; these names are folded. Only an ALTER TABLE has clauses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from binlake.dialect.tokens import Token, TokenKind, find_closing, skip_exists, split_list, tokenize
from binlake.rows.schema.forms import fold_name

NameRef = tuple[str, str]
"""(database, table); database empty = the job's."""
_HEADS = {
    "DATABASE": "DATABASE",
    "SCHEMA": "DATABASE",
    "TABLE": "TABLE",
    "INDEX": "INDEX",
    "VIEW": "VIEW",
    "SEQUENCE": "SEQUENCE",
}
# DEFINER, ALGORITHM and the words after `=` or `@` occur in views.
_MODIFIERS = (
    "OR", "REPLACE", "GLOBAL", "LOCAL", "TEMPORARY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "COLUMNAR", "ONLINE",
    "OFFLINE", "IGNORE", "ALGORITHM", "DEFINER", "SQL", "SECURITY", "INVOKER", "@",
)  # fmt: skip
_DATABASE_OPTIONS = ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "ENCRYPTION", "PLACEMENT", "SET", "READ")
KEY_HEADS = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "PRIMARY", "CONSTRAINT", "FOREIGN", "CHECK")
"""Keywords after ADD or DROP of a key or constraint."""


class DdlKind(Enum):
    """Kinds of DDL that the mapping distinguishes."""

    CREATE_DATABASE = "create database"
    ALTER_DATABASE = "alter database"
    DROP_DATABASE = "drop database"
    CREATE_TABLE = "create table"
    CREATE_TABLE_LIKE = "create table like"
    ALTER_TABLE = "alter table"
    DROP_TABLE = "drop table"
    TRUNCATE_TABLE = "truncate table"
    RENAME_TABLE = "rename table"
    CREATE_INDEX = "create index"
    DROP_INDEX = "drop index"
    CREATE_VIEW = "create view"
    DROP_VIEW = "drop view"
    CREATE_SEQUENCE = "create sequence"
    ALTER_SEQUENCE = "alter sequence"
    DROP_SEQUENCE = "drop sequence"
    OTHER = "other"


DESTRUCTIVE = frozenset(
    {DdlKind.DROP_DATABASE, DdlKind.DROP_TABLE, DdlKind.TRUNCATE_TABLE, DdlKind.DROP_VIEW, DdlKind.DROP_SEQUENCE}
)


@dataclass(frozen=True)
class Classified:
    """The kind of a statement and the objects that it names.

    `tables`: the tables (or the database) that it creates, changes or removes; `rest`: index of the first token after
    the names. `destructive`: the statement deletes data (DROP, TRUNCATE, also of a column or partition).
    """

    kind: DdlKind
    tables: tuple[NameRef, ...]
    destructive: bool
    rest: int


def classify(text: str) -> Classified:
    """Classify DDL text. Text that is empty without TiDB's special comments has kind OTHER and no tables."""
    return classify_tokens([t for t in tokenize(text) if t.kind not in (TokenKind.FEATURE, TokenKind.COMMENT)])


def classify_tokens(tokens: Sequence[Token]) -> Classified:
    """`classify` for tokens without comments."""
    kind, at = _read_kind(tokens)
    if kind is DdlKind.OTHER:
        return Classified(kind, (), False, at)
    if kind in (DdlKind.DROP_TABLE, DdlKind.DROP_VIEW, DdlKind.DROP_SEQUENCE, DdlKind.RENAME_TABLE):
        return _classify_list(kind, tokens, at)
    if kind in (DdlKind.CREATE_INDEX, DdlKind.DROP_INDEX):
        at = next((i + 1 for i in range(at, len(tokens)) if tokens[i].is_word("ON")), len(tokens))
    if kind is DdlKind.ALTER_DATABASE and at < len(tokens) and tokens[at].is_word(*_DATABASE_OPTIONS):
        # Without a name the statement changes the session's database.
        return Classified(kind, (), False, at)
    name, rest = read_name(tokens, at)
    destructive = kind in DESTRUCTIVE or (kind is DdlKind.ALTER_TABLE and _drops(tokens[rest:]))
    if kind is DdlKind.CREATE_TABLE and _is_like(tokens, rest):
        kind = DdlKind.CREATE_TABLE_LIKE
    return Classified(kind, (name,) if name else (), destructive, rest)


def removes_partition_rows(clauses: Sequence[Token]) -> bool:
    """Whether the `clauses` of an ALTER TABLE remove or exchange the rows of partitions, which no server logs."""
    return any(
        len(clause) > 1
        and clause[0].is_word("DROP", "TRUNCATE", "EXCHANGE", "CONVERT")
        and clause[1].is_word("PARTITION")
        for clause in split_list(clauses)
    )


def names_object_first(tokens: Sequence[Token]) -> bool:
    """True if only modifiers are between the verb and the object that `classify` found.

    Otherwise the object may belong to an inner statement: `CREATE EVENT e ... DO TRUNCATE TABLE t`.
    """
    at = next((i for i, t in enumerate(tokens) if i and t.is_word(*_HEADS)), None)
    between = range(1, at or 1)
    return all(
        tokens[i].is_word(*_MODIFIERS) or tokens[i - 1].is_mark("=") or tokens[i - 1].is_word("@")
        for i in between
        if tokens[i].kind in (TokenKind.WORD, TokenKind.NAME)
    )


def _read_kind(tokens: Sequence[Token]) -> tuple[DdlKind, int]:
    """(kind, index of the first token after `VERB … OBJECT [IF [NOT] EXISTS]`)."""
    if not tokens or tokens[0].kind is not TokenKind.WORD:
        return DdlKind.OTHER, 0
    verb = tokens[0].text.upper()
    at = next((i for i, t in enumerate(tokens) if i and t.is_word(*_HEADS)), None)
    if verb == "TRUNCATE" and at is None:
        return DdlKind.TRUNCATE_TABLE, 1
    # `CREATE OR REPLACE ALGORITHM = … DEFINER = … VIEW` has other words in between; no statement has a `(` there.
    if at is None or any(t.is_mark("(") for t in tokens[:at]):
        return DdlKind.OTHER, 0
    name = f"{verb} {_HEADS[tokens[at].text.upper()]}".lower()
    if name not in DdlKind._value2member_map_:
        return DdlKind.OTHER, at
    return DdlKind(name), skip_exists(tokens, at + 1)


def read_name(tokens: Sequence[Token], at: int) -> tuple[NameRef | None, int]:
    """(`db`.`table` or `table` at index `at`, index after it); None if there is no name."""
    if at >= len(tokens) or tokens[at].kind not in (TokenKind.NAME, TokenKind.WORD):
        return None, at
    if at + 2 < len(tokens) and tokens[at + 1].is_mark("."):
        return (tokens[at].value, tokens[at + 2].value), at + 3
    return ("", tokens[at].value), at + 1


def _classify_list(kind: DdlKind, tokens: Sequence[Token], at: int) -> Classified:
    """Classify DROP and RENAME, which take lists; each part of a RENAME names two tables."""
    names: list[NameRef] = []
    for part in split_list(tokens[at:]):
        name, after = read_name(part, 0)
        other = read_name(part, after + 1)[0] if after < len(part) and part[after].is_word("TO") else None
        names += [n for n in (name, other) if n]
    return Classified(kind, tuple(names), kind in DESTRUCTIVE, at)


def _is_like(tokens: Sequence[Token], rest: int) -> bool:
    at = rest + 1 if rest < len(tokens) and tokens[rest].is_mark("(") else rest
    return at < len(tokens) and tokens[at].is_word("LIKE")


def _drops(tokens: Sequence[Token]) -> bool:
    for spec in split_list(tokens):
        if not spec or not spec[0].is_word("DROP", "TRUNCATE", "EXCHANGE"):
            continue
        second = spec[1] if len(spec) > 1 else spec[0]
        if spec[0].is_word("TRUNCATE", "EXCHANGE") or not second.is_word("INDEX", "KEY", "PRIMARY", "FOREIGN", "CHECK"):
            return True
    return False


def find_alter_clauses(tokens: Sequence[Token]) -> list[Token]:
    """The tokens after the table name of an ALTER TABLE, without comments; empty for another statement."""
    plain = [token for token in tokens if token.kind not in (TokenKind.FEATURE, TokenKind.COMMENT)]
    statement = classify_tokens(plain)
    return plain[statement.rest :] if statement.kind is DdlKind.ALTER_TABLE else []


def find_changed_columns(clauses: Sequence[Token]) -> dict[str, str]:
    """New name -> former name of each `CHANGE [COLUMN] former new ...`; the two may be equal."""
    former_names = dict[str, str]()
    for clause in split_list(clauses):
        if clause and clause[0].is_word("CHANGE"):
            at = _find_name(clause)
            former_names[fold_name(clause[at + 1].value)] = fold_name(clause[at].value)
    return former_names


def find_renamed_columns(clauses: Sequence[Token]) -> dict[str, str]:
    """New name -> former name of each column that a CHANGE or RENAME COLUMN renames."""
    former_names = find_changed_columns(clauses)
    for clause in split_list(clauses):
        if len(clause) > 4 and clause[0].is_word("RENAME") and clause[1].is_word("COLUMN"):
            at = _find_name(clause)
            former_names[fold_name(clause[at + 2].value)] = fold_name(clause[at].value)
    return {new: former for new, former in former_names.items() if new != former}


def find_dropped_columns(clauses: Sequence[Token]) -> set[str]:
    """The columns of each `DROP [COLUMN] name`."""
    return _find_columns_after("DROP", clauses)


def find_added_columns(clauses: Sequence[Token]) -> set[str]:
    """The columns of each `ADD [COLUMN] name ...`, and of each `ADD [COLUMN] (name ..., name ...)`."""
    return _find_columns_after("ADD", clauses)


def read_added_elements(clause: Sequence[Token]) -> list[list[Token]]:
    """The columns and keys of `ADD [COLUMN] [IF NOT EXISTS] (element, element ...)`; empty for another clause."""
    at = _find_name(clause) if len(clause) > 1 and clause[0].is_word("ADD") else len(clause)
    if at >= len(clause) or not clause[at].is_mark("("):
        return []
    return split_list(clause[at + 1 : find_closing(clause, at)])


def is_period(clause: Sequence[Token]) -> bool:
    """Whether a clause is `ADD | DROP PERIOD [IF [NOT] EXISTS] FOR …` (MariaDB): `PERIOD` is no column there."""
    after = skip_exists(clause, 2)
    return len(clause) > after and clause[1].is_word("PERIOD") and clause[after].is_word("FOR")


def _find_columns_after(verb: str, clauses: Sequence[Token]) -> set[str]:
    columns = set[str]()
    for clause in split_list(clauses):
        if len(clause) > 1 and clause[0].is_word(verb) and not is_period(clause):
            elements = read_added_elements(clause) or [clause[_find_name(clause) :]]
            names = [element[0] for element in elements if element]
            columns |= {fold_name(name.value) for name in names if not name.is_word("PARTITION", *KEY_HEADS)}
    return columns


def _find_name(clause: Sequence[Token]) -> int:
    return skip_exists(clause, 1 + clause[1].is_word("COLUMN"))
