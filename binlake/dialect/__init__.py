"""DDL text of TiDB: tokenize it, find a statement's kind and tables, and write it in the target's dialect."""

from binlake.dialect.classify import Classified, DdlKind, classify
from binlake.dialect.collations import (
    choose_bytewise_collation,
    derive_bytewise_definitions,
    derive_bytewise_table,
    find_target_charset,
    find_target_collation,
    has_target_collation,
    render_bytewise,
)
from binlake.dialect.mapping import DdlText, MappedDdl, build_inexpressible_error, map_ddl
from binlake.dialect.names import StatementNames, find_session_db, put_target_names
from binlake.dialect.routed import RoutedDdl
from binlake.dialect.source import KnownNames, needs_standard, standardize_text, tokenize_restored

__all__ = [
    "Classified",
    "DdlKind",
    "DdlText",
    "KnownNames",
    "MappedDdl",
    "RoutedDdl",
    "StatementNames",
    "build_inexpressible_error",
    "choose_bytewise_collation",
    "classify",
    "derive_bytewise_definitions",
    "derive_bytewise_table",
    "find_session_db",
    "find_target_charset",
    "find_target_collation",
    "has_target_collation",
    "map_ddl",
    "needs_standard",
    "put_target_names",
    "render_bytewise",
    "standardize_text",
    "tokenize_restored",
]
