"""The clauses of an ALTER TABLE in standard form, with TiDB's kind of each.

Column definitions are taken from the table as it is afterwards (`columntext`), so that no setting of the session is
left to be known. Names are quoted where the grammar has a name. Clauses that no target needs (engine, row format,
how to run it) are left out, as are those that IF EXISTS made do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from binlake.dialect.columnnames import KEY_HEADS, dropped_columns, elements_of_add, renamed_columns
from binlake.dialect.tokens import (
    Token,
    TokenKind,
    find_closing,
    join_list,
    past_exists,
    spaced_tokens,
    split_list,
    tokenize,
)
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.columntext import CreateText
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY
from binlake.rows.schema import Action, TableDef
from binlake.rows.schema.names import fold_name
from binlake.statements.literal import quote_name

_PARTITION_VERBS = (
    "ANALYZE", "CHECK", "COALESCE", "DROP", "OPTIMIZE", "REBUILD", "REORGANIZE", "REPAIR", "TRUNCATE",
)  # fmt: skip
_LEFT_OUT = frozenset(
    {
        "ALGORITHM", "ANALYZE", "AVG_ROW_LENGTH", "CHECK", "CHECKSUM", "COMPRESSION", "CONNECTION", "DATA",
        "DELAY_KEY_WRITE", "DISABLE", "ENABLE", "ENCRYPTED", "ENCRYPTION", "ENCRYPTION_KEY_ID", "ENGINE",
        "ENGINE_ATTRIBUTE", "FORCE", "INSERT_METHOD", "KEY_BLOCK_SIZE", "LOCK", "MAX_ROWS", "MIN_ROWS", "NOWAIT",
        "OPTIMIZE", "ORDER", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PASSWORD", "REBUILD", "REPAIR",
        "ROW_FORMAT", "SECONDARY_ENGINE", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
        "STATS_SAMPLE_PAGES", "TABLESPACE", "TRANSACTIONAL", "TYPE", "UNION", "VALIDATE", "WITH", "WITHOUT",
    }
)  # fmt: skip
"""First words of clauses that say how the server stores or does it: nothing for a target."""
_OPTIONS = (
    "ALGORITHM", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHARACTER", "CHARSET", "CHECKSUM", "COLLATE", "COMMENT",
    "COMPRESSION", "CONNECTION", "DATA", "DELAY_KEY_WRITE", "ENCRYPTION", "ENGINE", "ENGINE_ATTRIBUTE", "INDEX",
    "INSERT_METHOD", "KEY_BLOCK_SIZE", "LOCK", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PAGE_CHECKSUM", "PASSWORD",
    "ROW_FORMAT", "SECONDARY_ENGINE", "SECONDARY_ENGINE_ATTRIBUTE", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES", "STORAGE", "TABLESPACE", "TRANSACTIONAL", "TYPE", "UNION",
)  # fmt: skip
"""First words of the options of a table: a value follows, with or without `=`, and maybe the next option."""
_FOREIGN_KEY, _CHECK = "FOREIGN KEY", "CHECK"


@dataclass
class Altered:
    """`specs`: clauses for a target with TiDB's kind of each.

    `former`: by the name of a column afterwards, the one that it had before; None for a new column of a name that
    another one had before. All folded; a name that is not there stayed.
    """

    specs: list[tuple[Action, list[Token]]] = field(default_factory=list)
    former: dict[str, str | None] = field(default_factory=dict)

    @property
    def action(self) -> Action:
        """The kind of the whole statement."""
        kinds = [kind for kind, _ in self.specs]
        return kinds[0] if len(kinds) == 1 else Action.MULTI_SCHEMA_CHANGE

    def tokens(self) -> list[Token]:
        """The clauses, with commas."""
        return join_list([spec for _, spec in self.specs])


def _former_names(specs: Sequence[Token], names: Set[str]) -> dict[str, str | None]:
    """`Altered.former` of clauses about a table that had the columns `names`."""
    renamed = {new: old for new, old in renamed_columns(specs).items() if old in names}
    return dict.fromkeys((*renamed.values(), *dropped_columns(specs))) | renamed


def refuse_unlogged_rows(specs: Sequence[Token]) -> None:
    """Raises SchemaError for clauses that give a table other rows without logging them."""
    for spec in split_list(specs):
        converts = len(spec) > 1 and spec[0].is_word("CONVERT") and spec[1].is_word("PARTITION", "TABLE")
        if converts or (spec and spec[0].is_word("DISCARD", "IMPORT", "EXCHANGE")):
            raise SchemaError(
                "a statement gives a table other rows without logging them",
                hint="take a new snapshot of the source behind this statement (binlake bootstrap)",
                where={"clause": " ".join(token.text for token in spec)},
            )


def standard_specs(specs: Sequence[Token], before: TableDef, after: CreateText) -> Altered:
    """The clauses behind `ALTER TABLE name`, of a table that was `before` and is `after`.

    Raises SchemaError for one that is not known.
    """
    reader = _Specs(before, after)
    found = Altered(former=_former_names(specs, reader.names))
    for spec in _apart(specs):
        # CHARACTER SET and COLLATE are two options, and one clause here.
        found.specs += [
            one for one in reader.read(spec) if one[0] is not Action.TABLE_CHARSET or one not in found.specs
        ]
    return found


def _apart(specs: Sequence[Token]) -> Iterator[list[Token]]:
    """Single clauses: `ADD (a INT, b INT)` is two, and options may stand side by side without a comma."""
    for spec in _clauses(specs):
        spec = _without_wait(spec)
        elements = elements_of_add(spec)
        if elements:
            exists = " IF NOT EXISTS" * any(token.is_word("EXISTS") for token in spec[:5])
            for part in elements:
                head = spaced_tokens("ADD" if part[0].is_word(*KEY_HEADS) else f"ADD COLUMN{exists}")
                yield [*head, *part]
        elif spec:
            yield from _options_apart(spec)


def _clauses(specs: Sequence[Token]) -> list[list[Token]]:
    """The clauses at commas; one of partitions has a list of names, and is the last."""
    parts = split_list(specs)
    at = next((n for n, part in enumerate(parts) if _is_of_partitions(part)), len(parts))
    return [*parts[:at], *([join_list(parts[at:])] if parts[at:] else [])]


def _is_of_partitions(part: Sequence[Token]) -> bool:
    return len(part) > 1 and part[0].is_word(*_PARTITION_VERBS) and part[1].is_word("PARTITION")


def _without_wait(spec: list[Token]) -> list[Token]:
    if spec[:1] and spec[0].is_word("WAIT"):
        return spec[2:]
    return spec[1:] if spec[:1] and spec[0].is_word("NOWAIT") else spec


def _options_apart(spec: list[Token]) -> Iterator[list[Token]]:
    """`ENGINE=InnoDB COMMENT 'x'`: each option is a clause of its own."""
    starts, at = list[int](), 0
    while at < len(spec):
        value = _option_value(spec, at)
        if value is None:
            break
        starts.append(at)
        at = (find_closing(spec, value) if value < len(spec) and spec[value].is_mark("(") else value) + 1
    for first, end in pairwise([0, *starts[1:], len(spec)]):
        yield spec[first:end]


def _option_value(spec: Sequence[Token], at: int) -> int | None:
    """Where the value of the option that begins at `at` stands; None where none begins."""
    at += spec[at].is_word("DEFAULT")
    if at >= len(spec) or spec[at].kind is not TokenKind.WORD:
        return None
    end = at + 1
    if end < len(spec) and spec[end].is_word("SET", "DIRECTORY"):
        end += 1
    elif spec[at].is_word("CHARACTER", "DATA", "INDEX"):
        return None
    has_mark = end < len(spec) and spec[end].is_mark("=")
    return end + has_mark if has_mark or spec[at].is_word(*_OPTIONS) else None


class _Specs:
    """Reads the clauses of one ALTER."""

    def __init__(self, before: TableDef, after: CreateText) -> None:
        self._before, self._after = before, after
        self.names = {fold_name(column.name) for column in before.all_columns}
        self._keys = {fold_name(index.name) for index in before.indexes}
        self._constraints = _constraints_in(str(before.raw.get(CREATE_KEY, "")))
        self._added, self._dropped = set[str](), set[str]()

    def read(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        word = spec[0].text.upper()
        if word in _LEFT_OUT and not (word == "CHECK" and len(spec) > 1 and spec[1].is_mark("(")):
            return []
        readers = {
            "ADD": self._add, "DROP": self._drop, "MODIFY": self._modify, "CHANGE": self._change,
            "ALTER": self._alter, "RENAME": self._rename,
        }  # fmt: skip
        return readers.get(word, self._option)(spec)

    def _add(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        if spec[1].is_word("PARTITION"):
            return [(Action.ADD_PARTITION, spec)]
        if spec[1].is_word(*KEY_HEADS):
            return self._add_key(spec)
        at = past_exists(spec, 1 + spec[1].is_word("COLUMN"))
        name = fold_name(spec[at].value)
        if name in self.names | self._added and any(t.is_word("EXISTS") for t in spec[1:at]):
            return []
        self._added.add(name)
        return [(Action.ADD_COLUMN, [*spaced_tokens("ADD COLUMN"), *self._column(spec, at, at + 1)])]

    def _add_key(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        start = next((at for at, token in enumerate(spec) if token.is_mark("(")), len(spec))
        head = [token for token in spec[:start] if not token.is_word("IF", "NOT", "EXISTS")]
        if len(head) < start and self._is_there(head):
            return []
        action = Action.ADD_INDEX
        if any(token.is_word("PRIMARY") for token in head):
            action = Action.ADD_PRIMARY_KEY
        elif any(token.is_word("FOREIGN") for token in head):
            action = Action.ADD_FOREIGN_KEY
        elif any(token.is_word("CHECK") for token in head):
            action = Action.ADD_CHECK
        words = (*KEY_HEADS, "ADD", "USING", "BTREE", "HASH", "RTREE")
        named = [token if token.is_word(*words) else _named(token) for token in head]
        return [(action, [*named, *self._key_parts(spec[start:])])]

    def _is_there(self, head: Sequence[Token]) -> bool:
        """Whether the table had the key or constraint that a clause names in front of its parentheses."""
        if any(token.is_word("PRIMARY") for token in head):
            return bool(self._before.primary_key)
        known = self._constraints if any(t.is_word("FOREIGN", "CHECK") for t in head) else self._keys
        return any(fold_name(token.value) in known for token in head if not token.is_word(*KEY_HEADS, "ADD"))

    def _key_parts(self, tokens: Sequence[Token]) -> list[Token]:
        """Names of columns quoted in the parentheses of a key; what follows them stays (REFERENCES, USING)."""
        put, previous = list[Token](), None
        for token in tokens:
            name = token.kind is TokenKind.WORD and previous is not None and (
                previous.is_mark("(") or previous.is_mark(",") or previous.is_word("REFERENCES")
            )  # fmt: skip
            is_column = name and (fold_name(token.text) in self.names or self._after.column(token.text) is not None)
            put.append(_named(token) if is_column or (previous and previous.is_word("REFERENCES")) else token)
            previous = token
        return put

    def _drop(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        second = spec[1]
        if second.is_word("PARTITION"):
            return [(Action.MULTI_SCHEMA_CHANGE, spec)]
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
        at = past_exists(spec, 1 + second.is_word("COLUMN"))
        name = fold_name(spec[at].value)
        if name not in self.names - self._dropped:
            return []
        self._dropped.add(name)
        return [(Action.DROP_COLUMN, [*spaced_tokens("DROP COLUMN"), _named(spec[at])])]

    def _drop_key(self, spec: list[Token], at: int, action: Action) -> list[tuple[Action, list[Token]]]:
        place = past_exists(spec, at)
        name = fold_name(spec[place].value)
        if place > at and name not in self._keys and name not in self._constraints:
            return []
        return [(action, [*spec[:at], _named(spec[place])])]

    def _drop_constraint(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        """DROP CONSTRAINT by what it is, which nothing but the table before tells."""
        name = spec[past_exists(spec, 2)]
        kind = self._constraints.get(fold_name(name.value), "")
        if not kind:
            return self._drop_key(spec, 2, Action.DROP_INDEX)
        action = Action.DROP_CHECK if kind == _CHECK else Action.DROP_FOREIGN_KEY
        return [(action, [*spaced_tokens(f"DROP {kind}"), _named(name)])]

    def _modify(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        at = past_exists(spec, 1 + spec[1].is_word("COLUMN"))
        if fold_name(spec[at].value) not in self.names | self._added:
            return []
        return [(Action.MODIFY_COLUMN, [*spaced_tokens("MODIFY COLUMN"), *self._column(spec, at, at + 1)])]

    def _change(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        at = past_exists(spec, 1 + spec[1].is_word("COLUMN"))
        if fold_name(spec[at].value) not in self.names:
            return []
        self._added.add(fold_name(spec[at + 1].value))
        head = [*spaced_tokens("CHANGE COLUMN"), _named(spec[at])]
        return [(Action.MODIFY_COLUMN, [*head, *self._column(spec, at + 1, at + 2)])]

    def _column(self, spec: list[Token], name: int, at: int) -> list[Token]:
        """`name definition [UNIQUE] [PRIMARY KEY] [FIRST | AFTER x]`, the definition as the table has it afterwards."""
        definition = self._after.column(spec[name].value)
        if definition is None:
            # A later clause took the column away again.
            definition = list(spec[at:])
            return [_named(spec[name]), *definition]
        return [_named(spec[name]), *definition, *_inline_keys(spec[at:]), *_place(spec[at:])]

    def _alter(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        if spec[1].is_word("INDEX", "KEY"):
            at = past_exists(spec, 2)
            if at > 2 and fold_name(spec[at].value) not in self._keys:
                return []
            return [(Action.INDEX_VISIBILITY, [*spec[:2], _named(spec[at]), *spec[at + 1 :]])]
        if spec[1].is_word("CHECK", "CONSTRAINT"):
            return []
        at = past_exists(spec, 1 + spec[1].is_word("COLUMN"))
        rest = spec[at + 1 :]
        if rest[:1] and rest[0].is_word("SET") and rest[1].is_word("VISIBLE", "INVISIBLE"):
            return []
        if fold_name(spec[at].value) not in self.names:
            return []
        return [(Action.SET_DEFAULT, [*spaced_tokens("ALTER COLUMN"), _named(spec[at]), *rest])]

    def _rename(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        at = past_exists(spec, 2)
        is_column = spec[1].is_word("COLUMN")
        if at > 2 and fold_name(spec[at].value) not in (self.names if is_column else self._keys):
            return []
        action = Action.MODIFY_COLUMN if is_column else Action.RENAME_INDEX
        return [(action, [*spec[:2], _named(spec[at]), *spaced_tokens("TO"), _named(spec[at + 2])])]

    def _option(self, spec: list[Token]) -> list[tuple[Action, list[Token]]]:
        word = spec[0].text.upper()
        if word == "CONVERT":
            return [(Action.TABLE_CHARSET, spaced_tokens(f"CONVERT TO {self._after.charset_words}"))]
        if any(token.is_word("CHARSET", "CHARACTER", "COLLATE") for token in spec):
            return [(Action.TABLE_CHARSET, spaced_tokens(self._after.charset_words))]
        kinds = {"COMMENT": Action.TABLE_COMMENT, "AUTO_INCREMENT": Action.REBASE_AUTO_ID}
        if word in kinds:
            return [(kinds[word], spec)]
        if word in ("TRUNCATE", "COALESCE", "REORGANIZE", "PARTITION", "REMOVE"):
            return [(Action.MULTI_SCHEMA_CHANGE, spec)]
        raise SchemaError(
            f"ALTER TABLE ... {word} is not known",
            hint="if it changes no definition, name its transaction in [[source.replace]] of feeder.toml: without"
            " statements it is passed over",
            where={"table": f"{self._before.db}.{self._before.name}"},
        )


def _constraints_in(create: str) -> dict[str, str]:
    """What each named constraint of a CREATE TABLE is, by its name folded: a foreign key or a check."""
    found = dict[str, str]()
    for head, name, kind in zip(tokens := tokenize(create), tokens[1:], tokens[2:], strict=False):
        if head.is_word("CONSTRAINT") and kind.is_word("FOREIGN", "CHECK"):
            found[fold_name(name.value)] = _CHECK if kind.is_word("CHECK") else _FOREIGN_KEY
    return found


def _named(token: Token) -> Token:
    return Token(TokenKind.NAME, quote_name(token.value), space=True)


def _inline_keys(definition: Sequence[Token]) -> list[Token]:
    """The keys that a column's definition asks for; a bare KEY is the primary one."""
    depth, words = 0, list[str]()
    for token in definition:
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.kind is TokenKind.WORD:
            words.append(token.text.upper())
    unique = "UNIQUE" in words or "SERIAL" in words
    primary = any(w == "KEY" and (not at or words[at - 1] != "UNIQUE") for at, w in enumerate(words))
    return spaced_tokens(" UNIQUE KEY" * unique + " PRIMARY KEY" * primary)


def _place(definition: Sequence[Token]) -> list[Token]:
    if definition and definition[-1].is_word("FIRST"):
        return spaced_tokens("FIRST")
    if len(definition) > 1 and definition[-2].is_word("AFTER"):
        return [*spaced_tokens("AFTER"), _named(definition[-1])]
    return []
