"""From net changes to SQL text: literals of canonical texts, and batches that finalize can execute."""

from binlake.statement.batch import UNCHECKED, StatementBatch, sql_digest

__all__ = ["UNCHECKED", "StatementBatch", "sql_digest"]
