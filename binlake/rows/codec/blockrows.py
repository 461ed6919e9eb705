"""The rows of `mutation` of a block of inserts: its columns are joined to maps and keys, and no row is decoded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from binlake.rows.codec.assemble import ColumnTexts, build_maps_part, format_key_texts, join_maps
from binlake.rows.codec.columnblocks import count_block_rows, is_column_block, read_column_block
from binlake.rows.codec.columns import has_plain_texts
from binlake.rows.codec.tabledecoder import look_up_decoder
from binlake.rows.codec.transaction import ROW_ERRORS, build_row_error
from binlake.rows.schema.info import TableDef
from binlake.tso import LOGICAL_BITS
from binlake.wire import binlog_pb2 as pb

_MS_PER_DAY = 86_400_000


def get_block(value: pb.PrewriteValue) -> tuple[int, bytes, int]:
    """(table id, block, number of its rows) of a transaction that `find_column_blocks` has found."""
    [mutation] = value.mutations
    [block] = mutation.inserted_rows
    assert is_column_block(block)
    return mutation.table_id, block, count_block_rows(block)


def build_block_columns(
    block: bytes, table: TableDef, names: tuple[str, str, str, str], moments: tuple[int, int, int]
) -> list[pa.Array]:
    """The columns of `mutation` for the rows of `block`; `moments`: commit_ts, start_ts and schema version.

    Raises WireError for a damaged block.
    """
    commit_ts, start_ts, version = moments
    try:
        texts = read_column_block(block, table)
    except ROW_ERRORS as error:
        raise build_row_error(error, "insert", table.id, commit_ts, 0) from error
    decoder, count = look_up_decoder(table), len(texts[0])
    rows = np.arange(count)
    day = (commit_ts >> LOGICAL_BITS) // _MS_PER_DAY
    keys = [texts[slot] for slot in decoder.key_slots]
    plain = [has_plain_texts(table.row_columns[slot]) for slot in decoder.key_slots]
    images = build_maps_part(rows, decoder.names, [ColumnTexts(column) for column in texts])
    return [
        pa.repeat(pa.scalar(commit_ts, pa.int64()), count),
        pa.repeat(pa.scalar(start_ts, pa.int64()), count),
        pa.array(rows.astype(np.int32)),
        pa.repeat(pa.scalar(day, pa.int32()), count).cast(pa.date32()),
        pa.repeat(pa.scalar(version, pa.int64()), count),
        *(pa.repeat(name, count) for name in names),
        pa.repeat(pa.scalar(table.id, pa.int64()), count),
        pa.repeat("insert", count),
        format_key_texts(keys, plain),
        pa.nulls(count, pa.string()),
        join_maps([], count),
        join_maps([images], count),
    ]
