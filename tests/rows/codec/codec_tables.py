"""Random tables, rows and damage for the codec's tests: every column type, every kind of handle, from one seed."""

from __future__ import annotations

import json
import string
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
from support.tidb_json import Json, Tables, column, index, table_def, table_info

from binlake.errors import BinlakeError
from binlake.rows.codec import MutationBatch, encode_commit_binlog, encode_prewrite_value
from binlake.rows.codec.assemble import format_key_text
from binlake.rows.codec.batch import Places
from binlake.rows.codec.datum import format_double, format_float
from binlake.rows.codec.encode import RowEncoder
from binlake.rows.codec.lanes import Ints
from binlake.rows.codec.temporal import format_duration
from binlake.rows.codec.transaction import TableLookup, decode_raw_changes
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.wire import binlog_pb2 as pb

Row = dict[str, str | None]
Outcome = list[tuple[Any, ...]] | str
_LETTERS = string.ascii_letters + " \"\\'\n\0中é😀\u2028\x7f"


@dataclass(frozen=True)
class Kind:
    """A column type: keyword arguments of `column`, and a random canonical text of it."""

    tp: int
    more: Json
    text: Callable[[Random, Json], str]


def _integer(bits: int, unsigned: bool) -> Callable[[Random, Json], str]:
    low, high = (0, (1 << bits) - 1) if unsigned else (-1 << bits - 1, (1 << bits - 1) - 1)
    return lambda draw, _: str(draw.choice([low, high, 0, 1, draw.randint(low, high), draw.getrandbits(draw.randint(1, bits - 1))]))  # fmt: skip  # noqa: E501


def _text(draw: Random, _: Json) -> str:
    size = draw.choice([0, 1, 3, 20, 63, 64, 200])
    return "".join(draw.choices(_LETTERS if draw.random() < 0.5 else string.ascii_letters, k=size))


def _hex(draw: Random, _: Json) -> str:
    return draw.randbytes(draw.choice([0, 1, 8, 9, 70])).hex().upper()


def _decimal(draw: Random, more: Json) -> str:
    precision, scale = more["flen"], more["decimal"]
    digits = draw.choice([0, 1, 10**precision - 1, draw.randrange(10**precision), draw.randrange(10 ** draw.randint(1, precision))])  # fmt: skip  # noqa: E501
    text = format(Decimal(digits).scaleb(-scale), "f") if precision < 28 else _scaled(digits, scale)
    return f"-{text}" if digits and draw.random() < 0.4 else text


def _scaled(digits: int, scale: int) -> str:
    text = str(digits).rjust(scale + 1, "0")
    return f"{text[:-scale]}.{text[-scale:]}" if scale else text


def _double(draw: Random, _: Json) -> str:
    bits = struct.unpack("<d", draw.randbytes(8))[0]
    value = draw.choice([0.0, -0.0, 1.0, draw.uniform(-1e10, 1e10), float(draw.randint(-(2**60), 2**60)), 1e15, 1e-5, 5e-324, bits])  # fmt: skip  # noqa: E501
    return format_double(value if np.isfinite(value) else 1.5)


def _single(draw: Random, _: Json) -> str:
    bits = float(np.float32(struct.unpack("<f", draw.randbytes(4))[0]))
    value = draw.choice([0.0, -0.0, 1.0, float(1 << 24), 16777216.0, 123456789.0, draw.uniform(-1e4, 1e4), 1e-5, bits])
    return format_float(value if np.isfinite(value) else 1.5)


def _date(draw: Random, _: Json) -> str:
    return draw.choice(["0000-00-00", "9999-12-31", f"{draw.randint(0, 9999):04d}-{draw.randint(0, 12):02d}-{draw.randint(0, 31):02d}"])  # fmt: skip  # noqa: E501


def _moment(draw: Random, more: Json) -> str:
    fsp = max(more["decimal"], 0)
    clock = f" {draw.randint(0, 23):02d}:{draw.randint(0, 59):02d}:{draw.randint(0, 59):02d}"
    return _date(draw, more) + clock + (f".{draw.randrange(10**6):06d}"[: fsp + 1] if fsp else "")


def _time(draw: Random, more: Json) -> str:
    unit = 10 ** (9 - max(more["decimal"], 0))
    most = (838 * 3600 + 3599) * 10**9
    return format_duration(draw.randint(-most, most) // unit * unit, max(more["decimal"], 0))


def _bit(draw: Random, more: Json) -> str:
    value = draw.choice([0, (1 << more["flen"]) - 1, draw.getrandbits(more["flen"])])
    return f"{value:0{(more['flen'] + 7) // 8 * 2}X}"


def _document(draw: Random, depth: int = 0) -> Any:
    kind = draw.randrange(9 if depth < 3 else 6)
    if kind > 5:
        inner = [_document(draw, depth + 1) for _ in range(draw.randrange(4))]
        return inner if kind < 8 else {_text(draw, {})[:20]: item for item in inner}
    return [None, True, draw.randint(-(2**63), 2**64 - 1), draw.uniform(-1e9, 1e9) + 0.5, _text(draw, {}), ""][kind]


def _json(draw: Random, _: Json) -> str:
    from binlake.rows.codec.jsons import read_json, write_json

    return read_json(write_json(json.dumps(_document(draw))), 0)[0]


_ELEMS = ["a", "b c", 'q"', "中"]
INTEGERS = [
    Kind(tp, {"flag": t.FLAG_UNSIGNED if unsigned else 0}, _integer(bits, unsigned))
    for tp, bits in ((t.TINY, 8), (t.SHORT, 16), (t.INT24, 24), (t.LONG, 32), (t.LONGLONG, 64))
    for unsigned in (False, True)
]
KINDS = [
    *INTEGERS,
    *(Kind(tp, {"flen": 300, "charset": charset}, _text)
      for tp in (t.VARCHAR, t.STRING, t.BLOB, t.LONGBLOB) for charset in ("utf8mb4", "latin1", "gbk")),
    *(Kind(tp, {"flen": 300, "charset": "binary"}, _hex) for tp in (t.VARCHAR, t.STRING, t.TINYBLOB, t.MEDIUMBLOB)),
    *(Kind(t.NEWDECIMAL, {"flen": flen, "decimal": scale}, _decimal)
      for flen, scale in ((1, 0), (10, 2), (9, 9), (18, 9), (14, 4), (65, 30), (65, 0), (30, 30), (38, 19))),
    Kind(t.FLOAT, {}, _single), Kind(t.DOUBLE, {}, _double), Kind(t.DATE, {}, _date),
    *(Kind(tp, {"decimal": fsp}, _moment) for tp in (t.DATETIME, t.TIMESTAMP) for fsp in (-1, 0, 1, 3, 6)),
    *(Kind(t.DURATION, {"decimal": fsp}, _time) for fsp in (0, 2, 6)),
    Kind(t.YEAR, {"flag": t.FLAG_UNSIGNED}, lambda draw, _: f"{draw.choice([0, draw.randint(1901, 2155)]):04d}"),
    *(Kind(t.BIT, {"flen": flen, "flag": t.FLAG_UNSIGNED}, _bit) for flen in (1, 8, 9, 33, 64)),
    Kind(t.ENUM, {"elems": _ELEMS}, lambda draw, _: draw.choice(["", *_ELEMS])),
    Kind(t.SET, {"elems": _ELEMS}, lambda draw, _: ",".join(e for e in _ELEMS if draw.random() < 0.5)),
    Kind(t.JSON, {}, _json),
]  # fmt: skip
_PREFIXED = t.STRINGS
_NO_KEY = {t.JSON, t.BLOB, t.LONGBLOB, t.TINYBLOB, t.MEDIUMBLOB}


@dataclass
class RandomTable:
    """A table as its writer sees it, and texts for its rows."""

    info: Json
    kinds: dict[str, Kind]
    definition: TableDef

    def row(self, draw: Random) -> Row:
        """A random row, with NULL only in nullable columns."""
        return {c.name: self._value(draw, c) for c in self.definition.all_columns}

    def _value(self, draw: Random, info: ColumnInfo) -> str | None:
        if not info.not_null and draw.random() < 0.25:
            return None
        return self.kinds[info.name].text(draw, self.kinds[info.name].more)


def random_table(draw: Random, table_id: int = 45) -> RandomTable:
    """Up to 7 columns of any types, ids of one or more bytes, and a row id, an integer handle or a common handle."""
    kinds = {f"c{n}": draw.choice(KINDS) for n in range(draw.randint(1, 7))}
    ids = draw.sample([*range(1, 8), 31, 32, 62, 63, 64, 65, 8191, 8192, 1 << 20], len(kinds))
    if draw.random() < 0.7:
        ids = sorted(ids)
    columns = [_column(draw, i, name, kind) for i, (name, kind) in zip(ids, kinds.items(), strict=True)]
    handle = draw.choice(["rowid", "int", "common", "unique"])
    more: Json = {}
    if handle == "int":
        name = draw.choice(list(kinds))
        kinds[name] = draw.choice(INTEGERS)
        n = list(kinds).index(name)
        columns[n] = column(ids[n], name, kinds[name].tp, flag=kinds[name].more["flag"] | t.FLAG_PRIMARY | 1)
        more["pk_is_handle"] = True
    keyed = [name for name, kind in kinds.items() if kind.tp not in _NO_KEY]
    if handle in ("common", "unique") and keyed:
        chosen = draw.sample(keyed, draw.randint(1, min(3, len(keyed))))
        for n, name in enumerate(kinds):
            if name in chosen:
                columns[n]["type"]["Flag"] |= 1
                columns[n]["generated_expr_string"] = ""
        parts = [(name, draw.choice([-1, 2]) if kinds[name].tp in _PREFIXED else -1) for name in chosen]
        more["index_info"] = [index(1, "k", parts, unique=True, primary=handle == "common")]
        more["is_common_handle"] = handle == "common"
    info = table_info(table_id, f"t{table_id}", columns, **more)
    return RandomTable(info, kinds, table_def(info))


def _column(draw: Random, column_id: int, name: str, kind: Kind) -> Json:
    made = column(column_id, name, kind.tp, **kind.more)
    chance = draw.random()
    if chance < 0.2:
        made["type"]["Flag"] |= 1
    elif chance < 0.3:
        made["default"] = made["origin_default"] = None if kind.tp in (t.BIT, t.JSON) else kind.text(draw, kind.more)
    elif chance < 0.4:
        made |= {"generated_expr_string": "x", "generated_stored": draw.random() < 0.5}
    return made


def changed(draw: Random, table: RandomTable) -> TableDef:
    """The table as a reader at another position sees it: columns dropped, added or in another order."""
    columns = [dict(c) for c in table.info["cols"]]
    keyed = {c["name"]["O"] for i in table.info["index_info"] for c in i["idx_cols"]}
    free = [c for c in columns if c["name"]["O"] not in keyed and not c["type"]["Flag"] & t.FLAG_PRIMARY]
    if free and len(columns) > 1 and draw.random() < 0.3:
        columns.remove(draw.choice(free))
    if draw.random() < 0.3:
        default = draw.choice([None, "7"])
        columns.insert(draw.randint(0, len(columns)), column(9000, "added", t.LONG, origin_default=default))
    if draw.random() < 0.2:
        draw.shuffle(columns)
    indexes = [{**i, "idx_cols": [{**c, "offset": 0} for c in i["idx_cols"]]} for i in table.info["index_info"]]
    rest = {k: table.info[k] for k in ("pk_is_handle", "is_common_handle")}
    info = table_info(table.info["id"], table.info["name"]["O"], columns, index_info=[], **rest)
    offsets = {c["name"]["O"]: c["offset"] for c in info["cols"]}
    for i in indexes:
        i["idx_cols"] = [{**c, "offset": offsets[c["name"]["O"]]} for c in i["idx_cols"]]
    return table_def(info | {"index_info": indexes})


def random_mutation(draw: Random, table: RandomTable, rows: int, damage: float = 0.0) -> pb.TableMutation:
    """Inserts, updates and deletes of random rows; some of them are damaged."""
    encoder = RowEncoder(table.definition, new_collation=draw.random() < 0.5)
    message = pb.TableMutation(table_id=table.info["id"])
    for _ in range(rows):
        kind = draw.choice([pb.Insert, pb.Update, pb.DeleteRow])
        row, rowid = table.row(draw), draw.getrandbits(20)
        if kind == pb.Insert:
            into, data = message.inserted_rows, encoder.insert(row, rowid)
        elif kind == pb.Update:
            into, data = message.updated_rows, encoder.update(row, table.row(draw), rowid)
        else:
            into, data = message.deleted_rows, encoder.delete(row, rowid)
        into.append(damaged(draw, data) if draw.random() < damage else data)
        message.sequence.append(kind)
    return message


def damaged(draw: Random, data: bytes) -> bytes:
    """`data` with a bit flipped, a byte changed, bytes removed, repeated or added, or its end cut off."""
    at = draw.randrange(len(data) + 1)
    size = draw.choice([1, 2, 9])
    return draw.choice([
        lambda: data[:at],
        lambda: data[:at] + draw.randbytes(size) + data[at:],
        lambda: data[:at] + data[at + size :],
        lambda: data[:at] + data[at : at + size] * 2 + data[at + size :],
        lambda: data[:at] + draw.randbytes(1) + data[at + 1 :],
        lambda: data[:at] + bytes(byte ^ 1 << draw.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :],
    ])()  # fmt: skip


def as_payload(commit_ts: int, *mutations: pb.TableMutation) -> bytes:
    """A complete commit binlog."""
    return encode_commit_binlog(commit_ts - 1, commit_ts, b"k", encode_prewrite_value(9, mutations))


def decode_plainly(payloads: list[tuple[int, bytes]], tables: Tables) -> Outcome:
    """The rows by the plain decoder, or the text of its error."""
    found: Outcome = []
    try:
        for commit_ts, payload in payloads:
            version, changes = decode_raw_changes(payload, commit_ts, commit_ts - 1, tables)
            for seq, plan, op, before, after in changes:
                key = format_key_text(plan.select_key(before or after))  # type: ignore[arg-type]
                new = format_key_text(plan.select_key(after)) if before and after else key
                moved = None if new == key else new
                found.append((commit_ts, seq, version, plan.table.id, op, key, moved, _pairs(before), _pairs(after)))
    except BinlakeError as error:
        return str(error)
    return found


def each(place: Callable[[int], TableLookup]) -> Places:
    """A lookup for many commit_ts, made from the lookup `place` for one."""
    return lambda commit_ts: ([place(ts) for ts in commit_ts.tolist()], np.arange(len(commit_ts)))


def ints(*values: int) -> Ints:
    """Numbers as `add_all` takes them."""
    return np.asarray(values, np.int64)


def decode_in_lanes(
    payloads: list[tuple[int, bytes]], tables: Tables, rows: int = 1 << 40, size: int = 1 << 40
) -> Outcome:
    """The rows by `MutationBatch`, in record batches of at most so many rows and bytes, or the text of its error."""
    batch, found = MutationBatch(), []
    names = ("commit_ts", "seq", "schema_version", "table_id", "op", "key", "new_key", "before", "after")
    try:
        for commit_ts, payload in payloads:
            batch.add(payload, commit_ts, commit_ts - 1, tables)
        for taken in batch.take_batches(rows, size):
            taken.validate(full=True)
            assert taken.num_rows <= rows
            found += list(zip(*(taken.column(name).to_pylist() for name in names), strict=True))
    except BinlakeError as error:
        return str(error)
    return found


def _pairs(image: Any) -> list[tuple[str, str | None]] | None:
    return None if image is None else list(zip(*image, strict=True))
