"""The clauses of an ALTER TABLE in standard form, with TiDB's kind of each.

Column definitions are taken from the resulting table (`columntext`), so that they do not depend on settings of the
session. Names are quoted wherever the grammar has a name. Clauses that no target needs (engine, row format, how to run
the statement) are dropped, as are those that had no effect because of IF [NOT] EXISTS.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from binlake.dialect.classify import KEY_HEADS, find_dropped_columns, find_renamed_columns, is_period
from binlake.dialect.tokens import (
    Token,
    TokenKind,
    join_list,
    skip_exists,
    split_partitioning,
    tokenize,
    tokenize_with_spaces,
)
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.clausetexts import split_clauses
from binlake.mysqlbinlog.definitions.columntext import CreateText
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY
from binlake.rows.schema import Action, TableDef
from binlake.rows.schema.forms import fold_name
from binlake.statements.literal import quote_name

_IGNORED_CLAUSES = frozenset(
    {
        "ALGORITHM", "ANALYZE", "AUTOEXTEND_SIZE", "AVG_ROW_LENGTH", "CHECK", "CHECKSUM", "COMPRESSION", "CONNECTION",
        "DATA", "DELAY_KEY_WRITE", "DISABLE", "ENABLE", "ENCRYPTED", "ENCRYPTION", "ENCRYPTION_KEY_ID", "ENGINE",
        "ENGINE_ATTRIBUTE", "FORCE", "INSERT_METHOD", "KEY_BLOCK_SIZE", "LOCK", "MAX_ROWS", "MIN_ROWS", "NOWAIT",
        "OPTIMIZE", "ORDER", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PASSWORD", "REBUILD", "REPAIR",
        "ROW_FORMAT", "SECONDARY_ENGINE", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
        "STATS_SAMPLE_PAGES", "STORAGE", "TABLESPACE", "TRANSACTIONAL", "TYPE", "UNION", "VALIDATE", "WITH", "WITHOUT",
    }
)  # fmt: skip
"""First words of clauses about how the server stores the table or runs the statement: irrelevant for a target."""
_FOREIGN_KEY, _CHECK = "FOREIGN KEY", "CHECK"


@dataclass
class AlterClauses:
    """`specs`: clauses for a target with TiDB's kind of each.

    `former`: by a column's new name, its name before; None for a new column whose name another column had before. All
    folded; names that are not in it did not change.
    """

    specs: list[tuple[Action, list[Token]]] = field(default_factory=list)
    former: dict[str, str | None] = field(default_factory=dict)

    @property
    def action(self) -> Action:
        """The kind of the whole statement."""
        kinds = [kind for kind, _ in self.specs]
        return kinds[0] if len(kinds) == 1 else Action.MULTI_SCHEMA_CHANGE

    def join_clauses(self) -> list[Token]:
        """The clauses, with commas; a partitioning follows without one."""
        specs = [spec for _, spec in self.specs]
        last = specs.pop() if specs and split_partitioning(specs[-1])[0] == [] else []
        return [*join_list(specs), *last]


def _find_former_names(specs: Sequence[Token], names: Set[str]) -> dict[str, str | None]:
    """`AlterClauses.former` for clauses on a table that had the columns `names`."""
    renamed = {new: old for new, old in find_renamed_columns(specs).items() if old in names}
    return dict.fromkeys((*renamed.values(), *find_dropped_columns(specs))) | renamed


def standardize_specs(specs: Sequence[Token], before: TableDef, after: CreateText) -> AlterClauses:
    """The clauses after `ALTER TABLE name`, for a table that was `before` and is `after`.

    Raises SchemaError for an unknown clause.
    """
    reader = _SpecReader(before, after)
    altered = AlterClauses(former=_find_former_names(specs, reader.names))
    for spec in split_clauses(specs):
        # CHARACTER SET and COLLATE are two options, and one clause here.
        altered.specs += [
            clause
            for clause in reader.read(spec)
            if clause[0] is not Action.TABLE_CHARSET or clause not in altered.specs
        ]
    return altered


class _SpecReader:
    """Reads the clauses of one ALTER."""

    def __init__(self, before: TableDef, after: CreateText) -> None:
        self._before, self._after = before, after
        self.names = {fold_name(column.name) for column in before.all_columns}
        self._keys = {fold_name(index.name) for index in before.indexes}
        self._constraints = _find_constraints(str(before.raw.get(CREATE_KEY, "")))
        self._added, self._dropped = set[str](), set[str]()

    def read(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        word = spec[0].text.upper()
        if word in _IGNORED_CLAUSES and not (word == "CHECK" and len(spec) > 1 and spec[1].is_mark("(")):
            return []
        if spec[0].kind is TokenKind.NAME and spec[1].is_mark("="):
            # MariaDB: an option of a storage engine, as SHOW CREATE TABLE shows it.
            return []
        readers = {
            "ADD": self._add, "DROP": self._drop, "MODIFY": self._modify, "CHANGE": self._change,
            "ALTER": self._alter, "RENAME": self._rename,
        }  # fmt: skip
        return readers.get(word, self._read_option)(spec)

    def _add(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        if spec[1].is_word("PARTITION"):
            return [(Action.ADD_PARTITION, spec)]
        if is_period(spec):
            return self._build_period_column_specs(spec)
        if spec[1].is_word(*KEY_HEADS):
            return self._add_key(spec)
        at = skip_exists(spec, 1 + spec[1].is_word("COLUMN"))
        name = fold_name(spec[at].value)
        if name in self.names | self._added and any(t.is_word("EXISTS") for t in spec[1:at]):
            return []
        self._added.add(name)
        added = [*tokenize_with_spaces("ADD COLUMN"), *self._read_column(spec, at, at + 1)]
        return [(Action.ADD_COLUMN, added), *self._read_inline_reference(spec, at)]

    def _read_inline_reference(self, spec: Sequence[Token], at: int) -> list[tuple[Action, list[Token]]]:
        """The index and foreign key that `ADD COLUMN name … REFERENCES …` creates where the server heeds it."""
        if not any(token.is_word("REFERENCES") for token in spec):
            return []
        indexes, keys = self._after.find_inline_references(spec[at].value)
        add = tokenize_with_spaces("ADD")
        new_indexes = [one for one in indexes if fold_name(one[1].value) not in self._keys]
        new_keys = [one for one in keys if fold_name(one[1].value) not in self._constraints]
        return [
            *((Action.ADD_INDEX, [*add, *one]) for one in new_indexes),
            *((Action.ADD_FOREIGN_KEY, [*add, *one]) for one in new_keys),
        ]

    def _build_period_column_specs(self, spec: Sequence[Token]) -> list[tuple[Action, list[Token]]]:
        """`ADD PERIOD FOR p (a, b)` makes its columns NOT NULL; the period itself is only a check of the source."""
        start = next(at for at, token in enumerate(spec) if token.is_mark("("))
        clauses = list[tuple[Action, list[Token]]]()
        for column in (spec[start + 1], spec[start + 3]):
            definition = self._after.find_column(column.value)
            if fold_name(column.value) in self.names - self._added and definition is not None:
                head = tokenize_with_spaces("MODIFY COLUMN")
                clauses.append((Action.MODIFY_COLUMN, [*head, _as_name(column), *definition]))
        return clauses

    def _add_key(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        start = next((at for at, token in enumerate(spec) if token.is_mark("(")), len(spec))
        head = [token for token in spec[:start] if not token.is_word("IF", "NOT", "EXISTS")]
        if len(head) < start and self._existed_before(head):
            return []
        action = Action.ADD_INDEX
        if any(token.is_word("PRIMARY") for token in head):
            action = Action.ADD_PRIMARY_KEY
        elif any(token.is_word("FOREIGN") for token in head):
            action = Action.ADD_FOREIGN_KEY
        elif any(token.is_word("CHECK") for token in head):
            action = Action.ADD_CHECK
        words = (*KEY_HEADS, "ADD", "USING", "BTREE", "HASH", "RTREE")
        named = [token if token.is_word(*words) else _as_name(token) for token in head]
        return [(action, [*named, *self._quote_key_columns(self._after.replace_periods(spec[start:]))])]

    def _existed_before(self, head: Sequence[Token]) -> bool:
        """Whether the table already had the key or constraint that a clause names before its parentheses."""
        if any(token.is_word("PRIMARY") for token in head):
            return bool(self._before.primary_key)
        known = self._constraints if any(t.is_word("FOREIGN", "CHECK") for t in head) else self._keys
        return any(fold_name(token.value) in known for token in head if not token.is_word(*KEY_HEADS, "ADD"))

    def _quote_key_columns(self, tokens: Sequence[Token]) -> list[Token]:
        """Quote column names in the parentheses of a key; what follows stays unchanged (REFERENCES, USING)."""
        put, previous = list[Token](), None
        for token in tokens:
            name = token.kind is TokenKind.WORD and previous is not None and (
                previous.is_mark("(") or previous.is_mark(",") or previous.is_word("REFERENCES")
            )  # fmt: skip
            is_column = name and (
                fold_name(token.text) in self.names or self._after.find_column(token.text) is not None
            )
            put.append(_as_name(token) if is_column or (previous and previous.is_word("REFERENCES")) else token)
            previous = token
        return put

    def _drop(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        second = spec[1]
        if second.is_word("PARTITION"):
            return [(Action.DROP_PARTITION, spec)]
        if is_period(spec):
            return []
        if second.is_word("PRIMARY"):
            return [(Action.DROP_PRIMARY_KEY, spec)]
        if second.is_word("INDEX", "KEY"):
            return self._drop_key(spec, 2, Action.DROP_INDEX)
        if second.is_word("FOREIGN"):
            return self._drop_key(spec, 3, Action.DROP_FOREIGN_KEY)
        if second.is_word("CHECK"):
            return self._drop_key(spec, 2, Action.DROP_CHECK)
        if second.is_word("CONSTRAINT"):
            return self._drop_constraint(spec)
        at = skip_exists(spec, 1 + second.is_word("COLUMN"))
        name = fold_name(spec[at].value)
        if name not in self.names - self._dropped:
            return []
        self._dropped.add(name)
        return [(Action.DROP_COLUMN, [*tokenize_with_spaces("DROP COLUMN"), _as_name(spec[at])])]

    def _drop_key(self, spec: list[Token], at: int, action: Action) -> list[tuple[Action, list[Token]]]:
        name_at = skip_exists(spec, at)
        name = fold_name(spec[name_at].value)
        if name_at > at and name not in self._keys and name not in self._constraints:
            return []
        return [(action, [*spec[:at], _as_name(spec[name_at])])]

    def _drop_constraint(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        """DROP CONSTRAINT by the constraint's kind, which only the table before the statement shows."""
        name = spec[skip_exists(spec, 2)]
        kind = self._constraints.get(fold_name(name.value), "")
        if not kind:
            return self._drop_key(spec, 2, Action.DROP_INDEX)
        action = Action.DROP_CHECK if kind == _CHECK else Action.DROP_FOREIGN_KEY
        return [(action, [*tokenize_with_spaces(f"DROP {kind}"), _as_name(name)])]

    def _modify(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        at = skip_exists(spec, 1 + spec[1].is_word("COLUMN"))
        name = fold_name(spec[at].value)
        if name not in self.names:
            return []
        if name in self._added and not (_find_inline_keys(spec[at + 1 :]) or _find_column_position(spec[at + 1 :])):
            # MariaDB lets a statement modify what it has dropped and added. ADD has the resulting definition already.
            return []
        return [(Action.MODIFY_COLUMN, [*tokenize_with_spaces("MODIFY COLUMN"), *self._read_column(spec, at, at + 1)])]

    def _change(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        at = skip_exists(spec, 1 + spec[1].is_word("COLUMN"))
        if fold_name(spec[at].value) not in self.names:
            return []
        self._added.add(fold_name(spec[at + 1].value))
        head = [*tokenize_with_spaces("CHANGE COLUMN"), _as_name(spec[at])]
        return [(Action.MODIFY_COLUMN, [*head, *self._read_column(spec, at + 1, at + 2)])]

    def _read_column(self, spec: list[Token], name: int, at: int) -> list[Token]:
        """`name definition [UNIQUE] [PRIMARY KEY] [FIRST | AFTER x]`, with the definition of the resulting table."""
        definition = self._after.find_column(spec[name].value)
        if definition is None:
            # A later clause removed the column again.
            definition = list(spec[at:])
            return [_as_name(spec[name]), *definition]
        return [_as_name(spec[name]), *definition, *_find_inline_keys(spec[at:]), *_find_column_position(spec[at:])]

    def _alter(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        if spec[1].is_word("INDEX", "KEY"):
            at = skip_exists(spec, 2)
            if at > 2 and fold_name(spec[at].value) not in self._keys:
                return []
            return [(Action.INDEX_VISIBILITY, [*spec[:2], _as_name(spec[at]), *spec[at + 1 :]])]
        if spec[1].is_word("CHECK", "CONSTRAINT"):
            return []
        at = skip_exists(spec, 1 + spec[1].is_word("COLUMN"))
        rest = spec[at + 1 :]
        if rest[:1] and rest[0].is_word("SET") and rest[1].is_word("VISIBLE", "INVISIBLE"):
            return []
        if fold_name(spec[at].value) not in self.names:
            return []
        return [(Action.SET_DEFAULT, [*tokenize_with_spaces("ALTER COLUMN"), _as_name(spec[at]), *rest])]

    def _rename(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        at = skip_exists(spec, 2)
        is_column = spec[1].is_word("COLUMN")
        if at > 2 and fold_name(spec[at].value) not in (self.names if is_column else self._keys):
            return []
        action = Action.MODIFY_COLUMN if is_column else Action.RENAME_INDEX
        return [(action, [*spec[:2], _as_name(spec[at]), *tokenize_with_spaces("TO"), _as_name(spec[at + 2])])]

    def _read_option(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        word = spec[0].text.upper()
        if word == "CONVERT":
            return [(Action.TABLE_CHARSET, tokenize_with_spaces(f"CONVERT TO {self._after.charset_words}"))]
        if any(token.is_word("CHARSET", "CHARACTER", "COLLATE") for token in spec):
            return [(Action.TABLE_CHARSET, tokenize_with_spaces(self._after.charset_words))]
        kinds = {
            "COMMENT": Action.TABLE_COMMENT, "AUTO_INCREMENT": Action.REBASE_AUTO_ID,
            "TRUNCATE": Action.TRUNCATE_PARTITION,
        }  # fmt: skip
        if word in kinds:
            return [(kinds[word], spec)]
        # Not TiDB's kinds of rearranging partitions: during those, TiDB logs changes twice.
        if word in ("COALESCE", "REORGANIZE", "PARTITION", "REMOVE"):
            return [(Action.MULTI_SCHEMA_CHANGE, spec)]
        raise SchemaError(
            f"ALTER TABLE ... {word} is not known",
            hint="if it changes no definition, name its transaction in [[source.replace]] of feeder.toml: without"
            " statements it is skipped",
            where={"table": f"{self._before.db}.{self._before.name}"},
        )


def _find_constraints(create: str) -> dict[str, str]:
    """The kind of each named constraint of a CREATE TABLE, by its folded name: a foreign key or a check."""
    constraints = dict[str, str]()
    for head, name, kind in zip(tokens := tokenize(create), tokens[1:], tokens[2:], strict=False):
        if head.is_word("CONSTRAINT") and kind.is_word("FOREIGN", "CHECK"):
            constraints[fold_name(name.value)] = _CHECK if kind.is_word("CHECK") else _FOREIGN_KEY
    return constraints


def _as_name(token: Token) -> Token:
    return Token(TokenKind.NAME, quote_name(token.value), space=True)


def _find_inline_keys(definition: Sequence[Token]) -> list[Token]:
    """The keys that a column's definition declares; KEY alone means the primary key."""
    depth, words = 0, list[str]()
    for token in definition:
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.kind is TokenKind.WORD:
            words.append(token.text.upper())
    unique = "UNIQUE" in words or "SERIAL" in words
    primary = any(w == "KEY" and (not at or words[at - 1] != "UNIQUE") for at, w in enumerate(words))
    return tokenize_with_spaces(" UNIQUE KEY" * unique + " PRIMARY KEY" * primary)


def _find_column_position(definition: Sequence[Token]) -> list[Token]:
    if definition and definition[-1].is_word("FIRST"):
        return tokenize_with_spaces("FIRST")
    if len(definition) > 1 and definition[-2].is_word("AFTER"):
        return [*tokenize_with_spaces("AFTER"), _as_name(definition[-1])]
    return []
