"""DDL text of TiDB: tokenize it, find a statement's kind and tables, and write it in the target's dialect."""

from binlake.dialect.bytewise import bytewise_collation, bytewise_definitions, bytewise_table, bytewise_text
from binlake.dialect.classify import Classified, Kind, classify
from binlake.dialect.collations import target_charset, target_collation
from binlake.dialect.ddltext import DdlText
from binlake.dialect.mapping import MappedDdl, RoutedDdl, inexpressible, map_ddl
from binlake.dialect.names import StatementNames, put_target_names, session_db
from binlake.dialect.source import Known, needs_standard, standard_text, tokenize_restored

__all__ = [
    "Classified",
    "DdlText",
    "Kind",
    "Known",
    "MappedDdl",
    "RoutedDdl",
    "StatementNames",
    "bytewise_collation",
    "bytewise_definitions",
    "bytewise_table",
    "bytewise_text",
    "classify",
    "inexpressible",
    "map_ddl",
    "needs_standard",
    "put_target_names",
    "session_db",
    "standard_text",
    "target_charset",
    "target_collation",
    "tokenize_restored",
]
