"""TiDB's row codec both ways: payload bytes to row changes with canonical text values, and back.

`decode_transaction` is for people and tests, `MutationBatch` for Arrow; `MutationBuilder` writes what they read.
"""

from binlake.codec.batch import MUTATION_SCHEMA, MapColumn, MutationBatch, key_text
from binlake.codec.encode import MutationBuilder, RowEncoder, commit_binlog, prewrite_binlog, prewrite_value
from binlake.codec.transaction import DecodeStats, RowChange, TableLookup, decode_transaction

__all__ = [
    "MUTATION_SCHEMA",
    "DecodeStats",
    "MapColumn",
    "MutationBatch",
    "MutationBuilder",
    "RowChange",
    "RowEncoder",
    "TableLookup",
    "commit_binlog",
    "decode_transaction",
    "key_text",
    "prewrite_binlog",
    "prewrite_value",
]
