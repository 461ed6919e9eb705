"""Many inserts of one table as columns of texts, in place of their rows: how a feeder sends the rows of a full load.

A block takes the place of a single inserted row in a TableMutation: MARK, the number of rows, and an Arrow stream with
one column of canonical texts for each column id. No datum begins with the first byte of MARK, so a decoder that does
not know blocks (an original Drainer, an older Binlake) refuses the row and skips nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from google.protobuf.message import DecodeError

from binlake.rows.schema.info import TableDef
from binlake.wire import binlog_pb2 as pb

MARK = b"\xffbinlake columns 1\x00"
_COUNT = struct.Struct("<I")
_HEAD = len(MARK) + _COUNT.size
_OPTIONS = ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))


def encode_column_block(columns: Mapping[int, pa.Array]) -> bytes:
    """The block of rows whose canonical texts (string arrays, NULL for NULL) are given by column id."""
    arrays = list(columns.values())
    batch = pa.RecordBatch.from_arrays(arrays, names=[str(column_id) for column_id in columns])
    sink = pa.BufferOutputStream()
    sink.write(MARK + _COUNT.pack(batch.num_rows))
    with ipc.new_stream(sink, batch.schema, options=_OPTIONS) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def is_column_block(row: bytes) -> bool:
    """True if the inserted `row` is a block."""
    return row.startswith(MARK)


def count_block_rows(block: bytes) -> int:
    """The number of rows of `block`, which is not read further. Raises struct.error if it is cut short."""
    return int(_COUNT.unpack_from(block, len(MARK))[0])


def read_column_block(block: bytes, table: TableDef) -> list[pa.Array]:
    """The texts of each of `table`'s row columns. Raises ValueError if the block is damaged or has other columns."""
    try:
        with ipc.open_stream(pa.py_buffer(block)[_HEAD:]) as stream:
            batch = stream.read_next_batch()
            batch.validate(full=True)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise ValueError(f"its columns cannot be read: {error}") from error
    wanted = [str(column.id) for column in table.row_columns]
    if batch.num_rows != count_block_rows(block) or {kind.type for kind in batch.schema} - {pa.string()}:
        raise ValueError("its columns do not have the form that its head names")
    if sorted(batch.schema.names) != sorted(wanted):
        raise ValueError("its columns are not those of the table's definition")
    return [batch.column(name) for name in wanted]


def find_column_blocks(binlogs: pa.BinaryArray) -> list[tuple[int, pb.PrewriteValue]]:
    """(number, value) of those `binlogs` whose rows are a block: its only mutation has nothing else."""
    if not len(binlogs):
        return []
    _, offsets, values = binlogs.buffers()
    bounds = np.frombuffer(offsets, np.int32)[binlogs.offset : binlogs.offset + len(binlogs) + 1]
    low, high = int(bounds[0]), int(bounds[-1])
    data = values.slice(low, high - low).to_pybytes() if values is not None else b""
    found: list[tuple[int, pb.PrewriteValue]] = []
    at = data.find(MARK)
    # One search in all bytes: without a block, this is all that it costs.
    while at >= 0:
        number = int(np.searchsorted(bounds, at + low, side="right")) - 1
        value = _parse_block(binlogs[number].as_py())
        if value is not None:
            found.append((number, value))
        at = data.find(MARK, int(bounds[number + 1]) - low)
    return found


def _parse_block(binlog: bytes) -> pb.PrewriteValue | None:
    try:
        value = pb.PrewriteValue.FromString(pb.Binlog.FromString(binlog).prewrite_value)
    except DecodeError:
        # Values of a damaged binlog may have any bytes; its decoder reports the damage.
        return None
    rows = [row for mutation in value.mutations for row in mutation.inserted_rows]
    is_alone = len(value.mutations) == 1 and len(value.mutations[0].sequence) == 1
    return value if is_alone and is_column_block(b"".join(rows)) else None
