"""Writes messages of a text protocol to a file: one per line, without keys, as TiCDC's storage sink does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Message


def encode_text_file(messages: pa.Table, terminator: bytes) -> bytes:
    """The values, each followed by `terminator`."""
    values = pc.fill_null(messages.combine_chunks().column(Message.VALUE), b"").combine_chunks()
    return join_values(pc.binary_join_element_wise(values, terminator, b""))


def join_values(values: Any) -> bytes:
    """All values of a binary array, none NULL, concatenated."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return b""
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return bytes(memoryview(data)[bounds[0] : bounds[-1]])
