"""Synthetic row changes and their transactions as Arrow tables: KEYS keys in TABLES tables, one table a transaction.

Everything follows from a row change's number, so any range of it can be built alone, and again. With Spark 4 million
row changes took 15 minutes on two busy cores; so 10 million take five.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from binlake import tso
from binlake.common.lakecolumns import Binlog, History, Mutation
from binlake.lake.tables import BINLOG, MUTATION, LakeTable, parse_schema

TABLES = 8
KEYS = 1_000_000
ROWS_OF_A_TRANSACTION = 5
BASE = 470614429184294912
SPAN_MS = 2 * 86_400_000
FIRST_KEY = 1_000_000
"""The least key: all keys have as many digits, so that their texts are built without Python."""
_COLUMNS = ("id", "k", "c", "pad")
_NAME_BYTES = [len(name) for name in _COLUMNS]
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_DAY_MS = 86_400_000
_PAYLOAD = 384
Numbers = npt.NDArray[np.uint64]
Octets = npt.NDArray[np.uint8]


def compute_step(mutations: int) -> int:
    """The distance of two transactions in commit_ts, if `mutations` row changes fill SPAN_MS."""
    return (SPAN_MS << 18) // (mutations // ROWS_OF_A_TRANSACTION)


def cut_by_day(mutations: int, rows: int) -> list[range]:
    """The numbers 0..mutations as ranges of at most `rows` (whole transactions), none with commits of two days."""
    step, at, cut = compute_step(mutations), 0, []
    while at < mutations:
        day_end = ((BASE + at // ROWS_OF_A_TRANSACTION * step >> 18) // _DAY_MS + 1) * _DAY_MS << 18
        left = -(-(day_end - BASE) // step) * ROWS_OF_A_TRANSACTION - at
        cut.append(range(at, min(mutations, at + min(rows, left))))
        at = cut[-1].stop
    return cut


def build_mutations(numbers: range, step: int) -> pa.Table:
    """The row changes of `numbers`, in the order of their commit, as `mutation` has them."""
    ids = np.arange(numbers.start, numbers.stop, dtype=np.uint64)
    commits, starts, which = _build_transactions(ids // np.uint64(ROWS_OF_A_TRANSACTION), step)
    keys = _format_keys(ids)
    names = pa.array([f"sbtest{number}" for number in range(TABLES)]).take(pa.array(which))
    op = ids % np.uint64(3)
    columns = {
        History.COMMIT_TS: commits, History.START_TS: starts, Mutation.SEQ: ids % np.uint64(ROWS_OF_A_TRANSACTION),
        History.COMMIT_DATE: _find_days(commits), History.SCHEMA_VERSION: pa.repeat(7, len(ids)),
        Mutation.SOURCE_DB: pa.repeat("sbtest", len(ids)), Mutation.SOURCE_TABLE: names,
        Mutation.DB: pa.repeat("sbtest", len(ids)), Mutation.TABLE: names, Mutation.TABLE_ID: which + 100,
        Mutation.OP: pa.array(["insert", "update", "delete"]).take(pa.array(op)),
        Mutation.KEY: _build_texts(_quote(keys), [keys.shape[1] + 4]),
        Mutation.NEW_KEY: pa.nulls(len(ids), pa.string()),
        Mutation.BEFORE: _build_images(ids, keys, 11, op > 0), Mutation.AFTER: _build_images(ids, keys, 21, op < 2),
    }  # fmt: skip
    return _cast(columns, MUTATION)


def build_binlogs(numbers: range, step: int) -> pa.Table:
    """The transactions of the row changes `numbers`, as `binlog` has them; their payloads are noise of 384 bytes."""
    txns = np.arange(numbers.start // ROWS_OF_A_TRANSACTION, numbers.stop // ROWS_OF_A_TRANSACTION, dtype=np.uint64)
    commits, starts, _ = _build_transactions(txns, step)
    noise = np.tile(np.stack([_mix(txns, seed) for seed in range(8)], axis=1).view(np.uint8), 6)
    ends = np.arange(len(txns) + 1, dtype=np.int32) * _PAYLOAD
    payload = pa.BinaryArray.from_buffers(pa.binary(), len(txns), [None, pa.py_buffer(ends), pa.py_buffer(noise)])
    columns = {
        History.COMMIT_TS: commits, History.START_TS: starts, Binlog.CHUNK: np.zeros(len(txns), np.int32),
        History.COMMIT_DATE: _find_days(commits), Binlog.PUMP: pa.repeat("pump-1", len(txns)),
        Binlog.KIND: pa.repeat("dml", len(txns)), History.SCHEMA_VERSION: pa.repeat(7, len(txns)),
        Binlog.JOB_ID: pa.repeat(0, len(txns)), Binlog.SCHEMA_STATE: pa.repeat(0, len(txns)), Binlog.PAYLOAD: payload,
    }  # fmt: skip
    return _cast(columns, BINLOG)


def _build_transactions(txns: Numbers, step: int) -> tuple[npt.NDArray[np.int64], ...]:
    """(commit_ts, start_ts, number of the table) of transactions by their number."""
    commits = BASE + txns.astype(np.int64) * step
    starts = commits - ((_mix(txns, 3) % np.uint64(2000)).astype(np.int64) + 1 << 18)
    return commits, starts, (_mix(txns, 5) % np.uint64(TABLES)).astype(np.int64)


def _find_days(commits: npt.NDArray[np.int64]) -> pa.Array:
    days = [tso.to_datetime(int(ts)).date() for ts in (commits[0], commits[-1])]
    assert days[0] == days[1], days
    return pa.repeat(pa.scalar(days[0]), len(commits))


def _build_images(ids: Numbers, keys: Octets, seed: int, there: npt.NDArray[np.bool_]) -> pa.Array:
    """A map of _COLUMNS for each row that is `there`, NULL for the others."""
    own = ids[there]
    k, pad = _format_hex(_mix(own, seed)), _format_hex(_mix(own, seed + 1))
    columns = [keys[there], k, np.hstack([k, k]), pad]
    values = _build_texts(np.hstack(columns), [column.shape[1] for column in columns])
    names = _build_texts(np.tile(np.frombuffer("".join(_COLUMNS).encode(), np.uint8), (len(own), 1)), _NAME_BYTES)
    ends = np.concatenate([[0], len(_COLUMNS) * np.cumsum(there)]).astype(np.int32)
    # An offset that is NULL marks a map that is NULL.
    return pa.MapArray.from_arrays(pa.array(ends, mask=np.append(~there, [False])), names, values)


def _quote(keys: Octets) -> Octets:
    """Each key as the only one of a JSON array."""
    before, after = (np.tile(np.frombuffer(text, np.uint8), (len(keys), 1)) for text in (b'["', b'"]'))
    return np.hstack([before, keys, after])


def _format_keys(ids: Numbers) -> Octets:
    """The key of each row change as decimal digits, all of the same number."""
    numbers = _mix(ids, 7) % np.uint64(KEYS) + np.uint64(FIRST_KEY)
    powers = 10 ** np.arange(len(str(FIRST_KEY)) - 1, -1, -1, dtype=np.uint64)
    return (numbers[:, None] // powers % np.uint64(10) + np.uint64(ord("0"))).astype(np.uint8)


def _format_hex(numbers: Numbers) -> Octets:
    """Each number as 16 upper-case hexadecimal digits."""
    octets = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return np.stack([_HEX[octets >> 4], _HEX[octets & 15]], axis=2).reshape(-1, 16)


def _build_texts(octets: Octets, sizes: Sequence[int]) -> pa.Array:
    """The texts of which each row of `octets` has one after the other, of these sizes."""
    steps = np.tile(np.array(sizes, np.int32), len(octets))
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(steps, dtype=np.int32)])
    buffers = [pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(octets))]
    return pa.StringArray.from_buffers(len(steps), *buffers)


def _mix(numbers: Numbers, seed: int) -> Numbers:
    """Well mixed 64 bits of each number (the finalizer of splitmix64)."""
    mixed = numbers + np.uint64(seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _cast(columns: dict[str, object], table: LakeTable) -> pa.Table:
    kinds = parse_schema(table.build_spark_schema())
    return pa.table(columns).select(kinds.names).cast(kinds)
