"""DDL text of TiDB: tokens, what a statement does and to which tables, and its form in the target's dialect."""

from binlake.ddl.classify import Classified, Kind, classify
from binlake.ddl.collations import target_charset, target_collation
from binlake.ddl.mapping import MappedDdl, SourceDdl, map_ddl

__all__ = [
    "Classified",
    "Kind",
    "MappedDdl",
    "SourceDdl",
    "classify",
    "map_ddl",
    "target_charset",
    "target_collation",
]
