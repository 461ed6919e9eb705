"""The definitions in a dump of mydumper or dumpling, as statements of a session that parses them as intended."""

from __future__ import annotations

from binlake.mysqlbinlog.dumpfolder import DumpFolder, read_dump_statements
from binlake.mysqlbinlog.model import LoggedSession, LoggedStatement

_SESSION = LoggedSession(sql_mode=0, time_zone="+00:00", explicit_defaults_for_timestamp=True)


def read_schema_files(dump: DumpFolder) -> list[LoggedStatement]:
    """The statements of a dump's schema files, databases first. Raises ConfigError for a damaged file."""
    files = [*(("", file) for file in dump.databases.values()), *((db, file) for (db, _), file in dump.tables.items())]
    return [LoggedStatement(db, text, _SESSION) for db, file in files for text in read_dump_statements(file)]
