"""The parameters of a workload: read once, checked, frozen. Equal specs and seeds give equal transactions.

A workload has columns of named kinds, each with a generator of values: canonical texts (see
binlake.rows.codec.values). Definitions are as TiDB shows them, in JSON; fields that a real TiDB writes but that nothing
here reads are left out (tidb-binlog 1.13).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from binlake.errors import ConfigError
from binlake.rows.codec.datum import format_double
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import CHARSET, COLLATE, Json, build_name_json

Value = Callable[[Random], str]
_POOL_BYTES = 1 << 16
_WORDS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 äöüß 日本語"
_POOL = "".join(Random(0).choices(_WORDS.replace(" ", ""), k=_POOL_BYTES))
_HEX = Random(1).randbytes(_POOL_BYTES).hex().upper()
_ELEMS = ("red", "green", "blue", "black")
_LONG_TEXT = 4000  # characters; a MySQL table may refuse a longer VARCHAR
SIZED = frozenset({"varchar", "text", "blob", "varbinary"})
"""Kinds among which `--row-bytes` is divided."""
DDL_KINDS = (
    "add-column", "drop-column", "modify-column", "add-index", "drop-index", "truncate", "create-table",
    "drop-table", "rename-table",
)  # fmt: skip
"""DDL kinds that `--ddl` takes."""


@dataclass(frozen=True)
class Col:
    """A column: TiDB's type number, length, decimals (-1 = not given), flags, elements; defaults as text."""

    name: str
    tp: int = t.LONG
    flen: int = 11
    decimal: int = 0
    not_null: bool = False
    unsigned: bool = False
    charset: str = "binary"
    collate: str = "binary"
    default: str | None = None
    elems: tuple[str, ...] = ()

    @property
    def sql_type(self) -> str:
        """The type as in SHOW COLUMNS: `bigint(20) unsigned`, `varchar(64)`."""
        name = t.look_up_type_name(self.tp, self.charset == "binary")
        if self.elems:
            return name + "(" + ",".join(f"'{elem}'" for elem in self.elems) + ")"
        if self.tp == t.NEWDECIMAL:
            name += f"({self.flen},{self.decimal})"
        elif self.tp in (t.DATETIME, t.TIMESTAMP, t.DURATION):
            name += f"({self.decimal})" if self.decimal > 0 else ""
        elif self.tp not in t.BLOBS | t.DATES | {t.JSON, t.FLOAT, t.DOUBLE}:
            name += f"({self.flen})"
        return name + " unsigned" * self.unsigned

    @property
    def sql(self) -> str:
        """The column's part of a CREATE or ALTER statement."""
        null = " NOT NULL" if self.not_null else " NULL" if self.tp == t.TIMESTAMP else ""
        return (
            f"`{self.name}` {self.sql_type.upper() if not self.elems else self.sql_type}{null}{_render_default(self)}"
        )


def build_column_json(column: Col, column_id: int, offset: int, *, primary: bool = False) -> Json:
    """One element of TableInfo.cols."""
    flag = t.FLAG_PRIMARY | t.FLAG_NOT_NULL if primary else 0
    flag |= t.FLAG_NOT_NULL if column.not_null else 0
    flag |= t.FLAG_UNSIGNED if column.unsigned else 0
    return {
        "id": column_id, "name": build_name_json(column.name), "offset": offset,
        "origin_default": None, "default": column.default, "default_is_expr": False, "generated_expr_string": "",
        "generated_stored": False, "state": 5, "comment": "", "hidden": False, "version": 2,
        "type": {"Tp": column.tp, "Flag": flag, "Flen": column.flen, "Decimal": column.decimal,
                 "Charset": column.charset, "Collate": column.collate, "Elems": list(column.elems) or None},
    }  # fmt: skip


def create_sql(name: str, columns: Iterable[Col], keys: Iterable[str]) -> str:
    """CREATE TABLE; `keys`: its key clauses."""
    return f"CREATE TABLE `{name}` ({','.join([*(column.sql for column in columns), *keys])})"


def _render_default(column: Col) -> str:
    return "" if column.default is None else f" DEFAULT '{column.default}'"


Kind = Callable[[str, int], tuple[Col, Value]]
"""Makes the column with this name, whose strings and bytes are `width` long, and the generator of its values."""


def _build_text_generator(width: int) -> Value:
    if width > _POOL_BYTES // 2:
        return lambda random: (_POOL * (width // _POOL_BYTES + 2))[(at := random.randrange(_POOL_BYTES)) : at + width]
    return lambda random: _POOL[(at := random.randrange(_POOL_BYTES - width)) : at + width]


def _build_bytes_generator(width: int) -> Value:
    if width > _POOL_BYTES // 2:
        return lambda random: (_HEX * (width // _POOL_BYTES + 2))[
            (at := 2 * random.randrange(_POOL_BYTES)) : at + 2 * width
        ]
    return lambda random: _HEX[(at := 2 * random.randrange(_POOL_BYTES - width)) : at + 2 * width]


def _build_string_column(name: str, width: int) -> tuple[Col, Value]:
    if width > _LONG_TEXT:
        return _build_long_text_column(name, width)
    return Col(name, t.VARCHAR, max(width, 16), -1, charset=CHARSET, collate=COLLATE), _build_text_generator(width)


def _build_long_text_column(name: str, width: int) -> tuple[Col, Value]:
    # At 4 bytes a character, 2^14 characters exceed the 65,535 bytes of a TEXT.
    tp = t.BLOB if width < 1 << 14 else t.LONGBLOB
    return Col(
        name, tp, 65_535 if tp == t.BLOB else (1 << 32) - 1, -1, charset=CHARSET, collate=COLLATE
    ), _build_text_generator(width)


def _build_blob_column(name: str, width: int) -> tuple[Col, Value]:
    tp = t.BLOB if width < 1 << 16 else t.LONGBLOB
    return Col(name, tp, 65_535 if tp == t.BLOB else (1 << 32) - 1, -1), _build_bytes_generator(width)


def _build_plain_kind(value: Value, tp: int, flen: int, decimal: int = -1, **more: Any) -> Kind:
    return lambda name, _: (Col(name, tp, flen, decimal, **more), value)


def _build_elements_kind(tp: int, value: Value) -> Kind:
    return _build_plain_kind(value, tp, 5, -1, charset=CHARSET, collate=COLLATE, elems=_ELEMS)


def _draw_date(random: Random) -> str:
    return f"{random.randint(1971, 2037)}-{random.randint(1, 12):02d}-{random.randint(1, 28):02d}"


def _draw_time(random: Random) -> str:
    return f"{random.randint(0, 23):02d}:{random.randint(0, 59):02d}:{random.randint(0, 59):02d}"


def _draw_moment(random: Random) -> str:
    return f"{_draw_date(random)} {_draw_time(random)}.{random.randint(0, 999):03d}"


def _draw_decimal(random: Random) -> str:
    return f"{random.randint(-(10**9), 10**9)}.{random.randint(0, 99):02d}"


def _draw_double(random: Random) -> str:
    return format_double(random.randint(-(10**9), 10**9) / 8)


def _draw_json(random: Random) -> str:
    return json.dumps(
        {"a": random.randint(0, 10**6), "b": [True, None, _build_text_generator(8)(random)]}, ensure_ascii=False
    )


def _set(random: Random) -> str:
    return ",".join(elem for elem in _ELEMS if random.random() < 0.5)


KINDS: dict[str, Kind] = {
    "int": _build_plain_kind(lambda random: str(random.randint(-(2**31), 2**31 - 1)), t.LONG, 11, 0),
    "bigint": _build_plain_kind(lambda random: str(random.randint(-(2**63), 2**63 - 1)), t.LONGLONG, 20, 0),
    "ubigint": _build_plain_kind(lambda random: str(random.randint(0, 2**64 - 1)), t.LONGLONG, 20, 0, unsigned=True),
    "varchar": _build_string_column,
    "text": _build_long_text_column,
    "blob": _build_blob_column,
    "varbinary": lambda name, width: (Col(name, t.VARCHAR, max(min(width, _LONG_TEXT), 16), -1), _build_bytes_generator(
        min(width, _LONG_TEXT)
    )),
    "decimal": _build_plain_kind(_draw_decimal, t.NEWDECIMAL, 12, 2),
    "double": _build_plain_kind(_draw_double, t.DOUBLE, 22),
    "date": _build_plain_kind(_draw_date, t.DATE, 10, 0),
    "datetime": _build_plain_kind(_draw_moment, t.DATETIME, 23, 3),
    "timestamp": _build_plain_kind(_draw_moment, t.TIMESTAMP, 23, 3),
    "time": _build_plain_kind(_draw_time, t.DURATION, 10, 0),
    "year": _build_plain_kind(lambda random: str(random.randint(1901, 2155)), t.YEAR, 4, 0),
    "bit": _build_plain_kind(lambda random: f"{random.randrange(1 << 8):02X}", t.BIT, 8, 0),
    "enum": _build_elements_kind(t.ENUM, lambda random: random.choice(_ELEMS)),
    "set": _build_elements_kind(t.SET, _set),
    "json": _build_plain_kind(_draw_json, t.JSON, (1 << 32) - 1, 0),
}  # fmt: skip
"""By the name that `--columns` takes."""


def require_kind(word: str) -> Kind:
    """The kind named `word`. Raises ConfigError."""
    if word not in KINDS:
        raise ConfigError("unknown kind of column", where={"kind": word}, hint=f"one of {', '.join(KINDS)}")
    return KINDS[word]


@dataclass(frozen=True)
class Faults:
    """Shares (0 to 1) of transactions whose binlogs are lost or late, as with a crashing writer.

    `rollback`: P then R. `lose_commit`, `lose_rollback`: C or R is never sent. `hold`: the transaction stays open
    during some later ones of its writer. `double`: the P is written twice, to another pump if there is one, the C only
    once.
    """

    rollback: float = 0.0
    lose_commit: float = 0.0
    lose_rollback: float = 0.0
    hold: float = 0.0
    double: float = 0.0

    def __post_init__(self) -> None:
        shares = [getattr(self, field.name) for field in fields(self)]
        if min(shares) < 0 or sum(shares) > 1:
            raise ConfigError("shares of faults are 0 to 1, and at most 1 together", where={"faults": self})

    @property
    def orphans(self) -> bool:
        """Whether some P will stay on a pump without its C or R."""
        return self.lose_commit + self.lose_rollback + self.double > 0


@dataclass(frozen=True)
class Spec:
    """The load. Sizes in bytes, `rate` in transactions a second over all writers (0 = as fast as the pumps accept
    them).

    `keyless` of the `tables` have no key. `columns`: kinds, besides the key. `row_bytes`: total width of a row's
    columns of variable size. `txn_rows`: least and most row changes of a transaction. `mix`: weights of insert, update,
    delete. `hot_keys`: rows of each table and writer that get `hot_share` of the updates; 0 = all rows alike.
    `ddl_every`: transactions between two DDLs; 0 = none. Either `transactions` (over all writers) or `seconds` ends it.
    """

    seed: int = 1
    db: str = "workload"
    tables: int = 4
    keyless: int = 1
    columns: tuple[str, ...] = ("int", "varchar", "decimal", "datetime")
    row_bytes: int = 100
    txn_rows: tuple[int, int] = (1, 5)
    mix: tuple[int, int, int] = (50, 40, 10)
    hot_keys: int = 0
    hot_share: float = 0.9
    ddl_every: int = 0
    ddl: tuple[str, ...] = DDL_KINDS
    writers: int = 8
    rate: float = 0.0
    transactions: int = 0
    seconds: float = 0.0
    faults: Faults = Faults()

    def __post_init__(self) -> None:
        for word in self.columns:
            require_kind(word)
        wrong = {
            "give either --transactions or --seconds": (self.transactions > 0) == (self.seconds > 0),
            "tables and writers must be above 0": min(self.tables, self.writers) < 1,
            "keyless must be a number of tables, 0 to all": not 0 <= self.keyless <= self.tables,
            "a table needs at least one column": not self.columns,
            "row-bytes must be above 0": self.row_bytes < 1,
            "txn-rows must be LEAST:MOST, with LEAST at least 1": not 1 <= self.txn_rows[0] <= self.txn_rows[1],
            "mix must be three weights, of insert, update and delete": min(self.mix) < 0 or self.mix[0] < 1,
            "hot-share must be 0 to 1": not 0 <= self.hot_share <= 1,
            "rate, hot-keys and ddl-every cannot be negative": min(self.rate, self.hot_keys, self.ddl_every) < 0,
            f"ddl kinds must be of {', '.join(DDL_KINDS)}": not set(self.ddl) <= set(DDL_KINDS) or not self.ddl,
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError(what)

    @property
    def round_size(self) -> int:
        """Transactions of one writer between two DDLs."""
        return max(1, self.ddl_every // self.writers)
