"""TiDB's row codec in both directions: payload bytes to row changes with canonical text values, and back.

`decode_transaction` serves people and tests, `MutationBatch` serves Arrow; `MutationBuilder` encodes what both decode.
"""

from binlake.rows.codec.assemble import MUTATION_SCHEMA, format_key_text
from binlake.rows.codec.batch import BATCH_BYTES, BATCH_ROWS, MutationBatch
from binlake.rows.codec.encode import MutationBuilder, RowEncoder, encode_commit_binlog, encode_prewrite_value
from binlake.rows.codec.transaction import DecodeStats, RowChange, TableLookup, decode_transaction

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "MUTATION_SCHEMA",
    "DecodeStats",
    "MutationBatch",
    "MutationBuilder",
    "RowChange",
    "RowEncoder",
    "TableLookup",
    "decode_transaction",
    "encode_commit_binlog",
    "encode_prewrite_value",
    "format_key_text",
]
