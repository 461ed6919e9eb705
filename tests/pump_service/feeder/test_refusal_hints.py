"""A statement that the tracker refuses names the cause that an operator can remove, not the server's version."""

from __future__ import annotations

from contextlib import closing

import pytest
from support.mariadb import MariaDb, execute
from support.sourcelog import SERVER_ID, end_of, source_of

from binlake.errors import SchemaError, WireError
from binlake.mysqlbinlog.charsets import BINARY, decode_text
from binlake.mysqlbinlog.definitions.statements import split_ddl
from binlake.mysqlbinlog.model import Flavor, LoggedSession, LoggedStatement
from binlake.pump_service.feeder.connection import open_log
from binlake.pump_service.feeder.tracker import ScratchServer

CASES = [
    ("zone", "CREATE TABLE z (ts TIMESTAMP)", LoggedSession(time_zone="Nowhere/Town"), "load its time zones there"),
    ("case", "ALTER TABLE known ADD x INT", LoggedSession(), "lower_case_table_names"),
    ("exists", "CREATE TABLE Known (id INT)", LoggedSession(), "lower_case_table_names"),
    ("version", "CREATE TABLE v (x NOSUCHTYPE)", LoggedSession(), "family and version"),
]


@pytest.mark.mariadb
@pytest.mark.parametrize("server", ["mariadb", "mysql"])
@pytest.mark.parametrize(("case", "text", "session", "hint"), CASES, ids=[case for case, *_ in CASES])
def test_refused_statement_names_its_cause(
    request: pytest.FixtureRequest, server: str, case: str, text: str, session: LoggedSession, hint: str
) -> None:
    made: MariaDb = request.getfixturevalue(server)
    flavor = Flavor.MYSQL if server == "mysql" else Flavor.MARIADB
    tracker = ScratchServer(f"hints-{case}", flavor, {"host": made.host, "port": made.port, "user": made.user})

    def run(statement: str, of: LoggedSession) -> None:
        for single in split_ddl(LoggedStatement("app", statement, of), flavor):
            tracker.run(single, of)

    try:
        tracker.rebuild(())
        run("CREATE DATABASE app", LoggedSession())
        run("CREATE TABLE Known (id INT)", LoggedSession())
        with pytest.raises(SchemaError) as refused:
            run(text, session)
    finally:
        tracker.rebuild(())
        tracker.close()
    assert hint in refused.value.hint
    assert "[[source.replace]]" in refused.value.hint
    assert ("version" in refused.value.hint) == (case == "version")


def test_bytes_of_a_session_without_a_charset_are_not_called_invalid_binary() -> None:
    with pytest.raises(WireError, match=r"SET NAMES binary\) has bytes that are not valid UTF-8: X'FF'") as refused:
        decode_text(b"ALTER TABLE t ADD v VARBINARY(4) DEFAULT '\xff'", BINARY)
    assert "[[source.replace]]" in refused.value.hint
    assert decode_text("ALTER TABLE t COMMENT 'ä'".encode(), BINARY).endswith("'ä'")


@pytest.mark.mariadb
@pytest.mark.parametrize("name", ["mariadb_source", "mysql"])
def test_statement_that_cannot_be_read_goes_on_by_a_replacement(request: pytest.FixtureRequest, name: str) -> None:
    server: MariaDb = request.getfixturevalue(name)
    execute(server, "CREATE DATABASE unread")
    start = end_of(server)
    link = server.connect(database="unread")
    with closing(link), link.cursor() as cursor:
        cursor.execute("SET NAMES binary")
        cursor.execute(b"CREATE TABLE t (v VARBINARY(4) DEFAULT '\xff\xfe')")
    log = open_log(source_of(server), SERVER_ID, start)
    with pytest.raises(WireError, match="SET NAMES binary") as refused:
        log.read(wait_s=30.0)
    log.end()
    replacement = {"id": str(refused.value.where["transaction"]), "statements": ["CREATE TABLE t (v VARBINARY(4))"]}
    log = open_log(source_of(server, replace=[replacement]), SERVER_ID, start)
    [transaction] = log.read(wait_s=30.0)
    log.end()
    assert transaction.id == replacement["id"]
    assert transaction.statement is not None
    execute(server, "DROP DATABASE unread")
