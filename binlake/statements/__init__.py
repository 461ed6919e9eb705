"""Render row changes as SQL text: literals from canonical text, and batches of REPLACE, DELETE and INSERT.

Input and output are Arrow columns of text; the plain functions in `literal` are the reference that tests compare with.
"""

from binlake.statements.batch import PHASES, UNCHECKED, Phase, StatementBatch, statement_digest
from binlake.statements.columns import images_from_rows
from binlake.statements.limits import MAX_STATEMENT_BYTES, BatchLimits
from binlake.statements.maps import images_from_maps
from binlake.statements.preserve import PreserveStatements, copy_name, copy_prefix
from binlake.statements.render import TableStatements

__all__ = [
    "MAX_STATEMENT_BYTES",
    "PHASES",
    "UNCHECKED",
    "BatchLimits",
    "Phase",
    "PreserveStatements",
    "StatementBatch",
    "TableStatements",
    "copy_name",
    "copy_prefix",
    "images_from_maps",
    "images_from_rows",
    "statement_digest",
]
