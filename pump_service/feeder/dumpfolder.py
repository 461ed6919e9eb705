"""The definitions in a folder of mydumper or dumpling, as the statements that its schema files hold.

`DB-schema-create.sql` makes a database, `DB.TABLE-schema.sql` a table; names are percent-encoded where they must be. A
view has a table in its place besides its `-schema-view.sql`: both are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from binlake.dialect.names import split_statements
from binlake.dialect.tokens import render, tokenize
from binlake.errors import ConfigError
from binlake.mysqlbinlog.model import Session, Statement

_DATABASE, _TABLE, _VIEW = "-schema-create.sql", "-schema.sql", "-schema-view.sql"
_SESSION = Session(sql_mode=0, time_zone="+00:00", explicit_defaults_for_timestamp=True)


def read_schema_files(folder: Path) -> list[Statement]:
    """The statements of a dump's schema files, databases first. Raises ConfigError naming what is missing."""
    databases, tables = sorted(folder.glob("*" + _DATABASE)), sorted(folder.glob("*" + _TABLE))
    tables = [file for file in tables if not file.with_name(file.name.removesuffix(_TABLE) + _VIEW).exists()]
    made = {unquote(file.name.removesuffix(_DATABASE)) for file in databases}
    needed = {_database_of(file) for file in tables}
    if not tables or needed - made:
        missing = ", ".join(sorted(db + _DATABASE for db in needed - made)) or f"*{_TABLE}"
        raise ConfigError(
            "a folder of definitions is no whole dump",
            hint="`definitions` of [source.start] is the folder that mydumper or dumpling wrote, uncompressed",
            where={"folder": folder, "missing": missing},
        )
    return [*(one for file in databases for one in _statements(file, "")),
            *(one for file in tables for one in _statements(file, _database_of(file)))]  # fmt: skip


def _database_of(file: Path) -> str:
    return unquote(file.name.split(".", 1)[0])


def _statements(file: Path, db: str) -> Iterator[Statement]:
    for tokens in split_statements(tokenize(file.read_text(encoding="utf-8"))):
        if tokens:
            yield Statement(db, render(tokens), _SESSION)
