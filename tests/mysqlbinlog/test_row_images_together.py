"""Rows encoded together equal rows encoded one by one: random rows of all types, tables, kinds and damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.examples import seeds
from support.tabledefs import Json, col, table

from binlake.common.spool import SpoolFile
from binlake.errors import WireError
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap
from binlake.mysqlbinlog.rowimage import encode_in_pieces, encode_transactions, large, transactions
from binlake.mysqlbinlog.rowimage.shape import DATETIME2, TIME2, TIMESTAMP2
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t

pytestmark = pytest.mark.long

Drawn = Callable[[random.Random], bytes]
Type = tuple[Json, int, int, Drawn]
"""A column, its type number and metadata in the log, and its values in the log's format."""


def _fixed(size: int) -> Drawn:
    def draw(dice: random.Random) -> bytes:
        filled = dice.randint(0, size)
        return dice.choice((bytes(size), b"\xff" * size, dice.randbytes(size), bytes(filled).ljust(size, b"\x7f")))

    return draw


def _moment(size: int) -> Drawn:
    """A date of about 2026, and `size` random bytes."""
    rest = _fixed(size)
    return lambda dice: b"\x99" + rest(dice)


def _sized(prefix: int, most: int, letters: bytes = bytes(range(256))) -> Drawn:
    def draw(dice: random.Random) -> bytes:
        body = bytes(dice.choices(letters, k=dice.choice((0, 1, most, dice.randint(0, most)))))
        return len(body).to_bytes(prefix, "little") + body

    return draw


def _document(dice: random.Random) -> bytes:
    body = dice.choice((b"", b"\x04\x00", b"\x05\x07\x00", b"\x0c\x03abc", b"\x02\x00\x00\x04\x00"))
    return len(body).to_bytes(4, "little") + body


def _types() -> list[Type]:
    types: list[Type] = []
    for tp, size in ((t.TINY, 1), (t.SHORT, 2), (t.INT24, 3), (t.LONG, 4), (t.LONGLONG, 8)):
        types += [(col("c", tp, unsigned=unsigned), tp, 0, _fixed(size)) for unsigned in (False, True)]
    for fsp in range(7):
        more = (fsp + 1) // 2
        types.append((col("c", t.DATETIME, decimal=fsp), DATETIME2, fsp, _moment(4 + more)))
        types.append((col("c", t.TIMESTAMP, decimal=fsp), TIMESTAMP2, fsp, _fixed(4 + more)))
        types.append((col("c", t.DURATION, decimal=fsp), TIME2, fsp, _fixed(3 + more)))
    for fsp in (0, 3):
        old = col("c", t.DURATION, decimal=fsp)
        types.append((old, t.DURATION, 0, _fixed((3, 0, 0, 5)[fsp])))
    types.append((col("c", t.TIMESTAMP, decimal=0), t.TIMESTAMP, 0, _fixed(4)))
    types.append(
        (col("c", t.DATETIME, decimal=0), t.DATETIME, 0, lambda d: d.randrange(99991231235959).to_bytes(8, "little"))
    )
    types += [
        (col("c", t.DATE), t.DATE, 0, lambda d: d.randrange(10_000 << 9).to_bytes(3, "little")),
        (col("c", t.YEAR), t.YEAR, 0, _fixed(1)),
    ]
    types += [(col("c", t.NEWDECIMAL, flen=p, decimal=s), t.NEWDECIMAL, p << 8 | s, _fixed(n))
              for p, s, n in ((10, 2, 5), (20, 4, 10), (65, 30, 30), (1, 0, 1), (5, 5, 3))]  # fmt: skip
    types += [(col("c", t.BIT, flen=n), t.BIT, (n // 8) << 8 | n % 8, _fixed((n + 7) // 8)) for n in (1, 8, 9, 33, 64)]
    types += [(col("c", t.ENUM), t.STRING, t.ENUM << 8 | n, _fixed(n)) for n in (1, 2)]
    types += [(col("c", t.SET), t.STRING, t.SET << 8 | n, _fixed(n)) for n in (1, 2, 3, 4, 8)]
    types.append((col("c", t.DOUBLE), t.DOUBLE, 8, lambda d: _fixed(7)(d) + b"\x3f"))
    types.append((col("c", t.FLOAT), t.FLOAT, 4, lambda d: _fixed(3)(d) + b"\x3f"))
    return types + _strings()


def _strings() -> list[Type]:
    ascii_letters, latin = bytes(range(32, 127)), bytes(range(32, 256))
    types: list[Type] = [
        (col("c", t.VARCHAR, flen=20), t.VARCHAR, 80, _sized(1, 80)),
        (col("c", t.VARCHAR, flen=200), t.VARCHAR, 800, _sized(2, 800)),
        (col("c", t.VARCHAR, flen=200, charset="latin1"), t.VARCHAR, 200, _sized(1, 200, latin)),
        (col("c", t.VARCHAR, flen=200, charset="latin1"), t.VARCHAR, 200, _sized(1, 200, ascii_letters)),
        (
            col("c", t.VARCHAR, flen=20, charset="ucs2"),
            t.VARCHAR,
            40,
            lambda d: b"\x04" + bytes((0, 65, d.randrange(99), 9)),
        ),
        (col("c", t.STRING, flen=9, charset="binary"), t.STRING, t.STRING << 8 | 9, _sized(1, 9)),
        (col("c", t.STRING, flen=200), t.STRING, (t.STRING ^ 0x30) << 8 | 0x20, _sized(2, 700)),
        (col("c", t.JSON), t.JSON, 4, _document),
    ]
    for size in (1, 2, 3, 4):
        types.append((col("c", t.BLOB, charset="binary"), t.BLOB, size, _sized(size, 200)))
    return types


_TYPES = _types()


def _key() -> Type:
    key = col("c", t.LONGLONG, not_null=True)
    key["type"]["Flag"] |= t.FLAG_PRIMARY
    return key, t.LONGLONG, 0, _fixed(8)


def _world(dice: random.Random) -> tuple[TableDef, TableMap, list[Type]]:
    types = dice.choices(_TYPES, k=dice.choice((1, 3, 9, 20)))
    has_key = dice.random() < 0.5
    if has_key:
        types.insert(dice.randint(0, len(types)), _key())
    columns = [{**column, "name": {"O": f"c{n}", "L": f"c{n}"}} for n, (column, *_) in enumerate(types)]
    definition = table("t", *columns, pk_is_handle=has_key)
    seen = TableMap(1, "d", "t", bytes(x[1] for x in types), tuple(x[2] for x in types), (True,) * len(types))
    return definition, seen, types


def _image(types: list[Type], dice: random.Random, nulls: float) -> bytes:
    bits, body = 0, b""
    for n, (column, _, _, draw) in enumerate(types):
        if dice.random() < nulls and not column["type"]["Flag"] & t.FLAG_PRIMARY:
            bits |= 1 << n
        else:
            body += draw(dice)
    # MariaDB sets no column bits.
    bits |= dice.choice((0, -1 << len(types)))
    size = (len(types) + 7) // 8
    return (bits & (1 << 8 * size) - 1).to_bytes(size, "little") + body


def _event(seen: TableMap, types: list[Type], dice: random.Random, nulls: float) -> RowsEvent:
    kind = dice.choice((RowKind.INSERT, RowKind.UPDATE, RowKind.DELETE))
    images = 2 if kind is RowKind.UPDATE else 1
    rows = [_image(types, dice, nulls) for _ in range(images * dice.choice((1, 1, 2, 30)))]
    every = ((1 << len(types)) - 1).to_bytes((len(types) + 7) // 8, "little")
    before, after = (b"" if kind is RowKind.INSERT else every), (b"" if kind is RowKind.DELETE else every)
    return RowsEvent(kind, seen, before, after, b"".join(rows))


def _never(*_: object) -> list[bytes]:
    raise AssertionError("a row went the plain way")


def _both(
    batch: list[list[RowsEvent]], definition: TableDef, patch: pytest.MonkeyPatch
) -> tuple[list[bytes], list[bytes]]:
    with patch.context() as alone:
        alone.setattr(transactions, "FEWEST", 1)
        alone.setattr(transactions, "encode_rows", _never)
        together = encode_transactions(batch, lambda _: definition, 1)
    patch.setattr(transactions, "FEWEST", 1 << 60)
    return together, encode_transactions(batch, lambda _: definition, 1)


@pytest.mark.parametrize("seed", seeds(60))
def test_bytes_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    definition, seen, types = _world(dice)
    monkeypatch.setattr(transactions, "_ROWS_AT_ONCE", dice.choice((1, 50, 8192)))
    monkeypatch.setattr(transactions, "_BYTES_AT_ONCE", dice.choice((1000, 4 << 20)))
    nulls = dice.choice((0, 0.1, 0.5, 1))
    batch = [[_event(seen, types, dice, nulls) for _ in range(dice.randint(0, 4))] for _ in range(dice.randint(1, 40))]
    together, one_by_one = _both(batch, definition, monkeypatch)
    assert together == one_by_one


@pytest.mark.parametrize("seed", seeds(60))
def test_bytes_of_a_transaction_in_pieces_are_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # U-06
    dice = random.Random(seed)
    worlds = [_world(dice) for _ in range(dice.randint(1, 3))]
    tables = {f"t{number}": replace(definition, id=100 + number) for number, (definition, _, _) in enumerate(worlds)}
    events: list[RowsEvent] = []
    count = dice.choice((1, 20, 60))
    while len(events) < count:
        number = dice.randrange(len(worlds) + 1)
        _, seen, types = worlds[number % len(worlds)]
        # The last table is left out.
        events.append(_event(replace(seen, table_id=number, table=f"t{number}"), types, dice, 0.1))
    at_once = dice.choice((1, 200, 3000, 1 << 20))
    monkeypatch.setattr(large, "_AT_ONCE", at_once)
    counts: list[int] = []
    guarded: list[RowsEvent] = []
    pieces = encode_in_pieces(
        iter(events), SpoolFile(tmp_path), lambda event: tables.get(event.table), 3, counts.append,
        lambda event, _: guarded.append(event),
    )  # fmt: skip
    all_rows: list[int] = []
    [expected] = encode_transactions([events], lambda event: tables.get(event.table), 3, all_rows.append)
    assert b"".join(piece[:] for piece in pieces) == expected
    assert sum(map(len, pieces)) == len(expected)
    assert all(map(len, pieces))
    assert sum(counts) == sum(all_rows)
    assert guarded == events
    size, parts = 0, 0
    for event in events:
        size = (0 if size >= at_once else size) + len(event.rows)
        parts += size >= at_once
    assert len(counts) == parts + (size < at_once)


@pytest.mark.parametrize("seed", seeds(30))
def test_errors_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    definition, seen, types = _world(dice)
    events = [_event(seen, types, dice, 0) for _ in range(5)]
    row_index = dice.randrange(5)
    whole = events[row_index]
    events[row_index] = RowsEvent(whole.kind, seen, whole.before, whole.after, whole.rows[:-1])
    texts = []
    for fewest in (1, 1 << 60):
        monkeypatch.setattr(transactions, "FEWEST", fewest)
        with pytest.raises(WireError) as error:
            encode_transactions([events], lambda _: definition, 1)
        texts.append(str(error.value))
    assert texts[0] == texts[1]
