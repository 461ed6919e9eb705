"""Converts row images of MySQL's and MariaDB's logs to TiDB's rows: `encode_transactions` is the entry point.

A definition and a table map give a shape (`shape.py`), by which rows are encoded one by one (`plain.py`)
or many at once, column by column (`together.py`). A large transaction is encoded into a file (`large.py`).
"""

from binlake.mysqlbinlog.rowimage.large import encode_in_pieces
from binlake.mysqlbinlog.rowimage.transactions import DefinitionOf, encode_transactions

__all__ = ["DefinitionOf", "encode_in_pieces", "encode_transactions"]
