"""Render row changes as SQL text: literals from canonical text, and batches of REPLACE, DELETE and INSERT.

Input and output are Arrow columns of text; the plain functions in `literal` are the reference that tests compare with.
"""

from binlake.statements.batch import (
    MAX_STATEMENT_BYTES,
    PHASES,
    UNCHECKED,
    BatchLimits,
    Phase,
    StatementBatch,
    compute_statement_digest,
)
from binlake.statements.literal import build_images_from_rows
from binlake.statements.maps import build_images_from_maps
from binlake.statements.render import PreserveStatements, TableStatements, format_copy_name, format_copy_prefix

__all__ = [
    "MAX_STATEMENT_BYTES",
    "PHASES",
    "UNCHECKED",
    "BatchLimits",
    "Phase",
    "PreserveStatements",
    "StatementBatch",
    "TableStatements",
    "build_images_from_maps",
    "build_images_from_rows",
    "compute_statement_digest",
    "format_copy_name",
    "format_copy_prefix",
]
