"""Copy a source by its log, with the feeder's own code: its catalog, its row images, and the target's statements.

There are no pumps and no lake: each transaction is followed, encoded and decoded as windows do it, and applied at once
with one statement per row change. Each statement must find its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pymysql.constants import CLIENT
from support.followed import COPY, Followed
from support.mariadb import MariaDb
from support.sourcelog import end_of, transactions_until_now

from binlake.changes.ordered.forms import OrderedStatement, RowForms
from binlake.mysqlbinlog.model import Flavor, SourceTransaction, TableMap
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.rows.codec import RowChange, decode_transaction
from binlake.rows.schema import TableDef
from binlake.statements.literal import quote_qualified_name
from binlake.target.session.session import SQL_MODE
from binlake.wire import binlog_pb2 as pb

Contents = Mapping[str, Sequence[str]]


class LoggedCopy(Followed):
    """Copies the databases of `server` to `copy_` databases of the same server; changes of the copies are not
    logged.
    """

    def __init__(
        self, server: MariaDb, source: str = "logged", ignores: Callable[[str, str], bool] = lambda _db, _table: False
    ) -> None:
        flavor = Flavor.MYSQL if server.name == "mysql" else Flavor.MARIADB
        super().__init__(server, flavor, source=source, ignores=ignores)
        self.at = end_of(server)
        self._rows = server.connect(client_flag=CLIENT.FOUND_ROWS)
        for link in (self._rows, self._there):
            with link.cursor() as cursor:
                cursor.execute("SET SESSION sql_log_bin = 0")
        with self._rows.cursor() as cursor:
            cursor.execute("SET NAMES utf8mb4 COLLATE utf8mb4_bin")
            cursor.execute(f"SET SESSION sql_mode = '{SQL_MODE}', time_zone = '+00:00', foreign_key_checks = 0")

    def close(self) -> None:
        """End the connections."""
        super().close()
        self._rows.close()

    def catch_up(self) -> None:
        """Follow the log to its end."""
        end = end_of(self.server)
        for transaction in transactions_until_now(self.server, self.at, end=end) if end != self.at else ():
            self._take(transaction)
        self.at = end

    def contents(self, db: str) -> Contents:
        """The rows of every table of `db` as sorted texts, in the form of the server's text protocol, times in UTC."""
        with self.server.connect(conv={}) as link, link.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_log_bin = 0")
            cursor.execute(
                "SELECT table_name, group_concat('`', replace(column_name, '`', '``'), '`' ORDER BY ordinal_position)"
                " FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)"
                f" WHERE table_schema = '{db}' AND table_type = 'BASE TABLE' GROUP BY table_name"
            )
            found = {}
            for table, columns in cursor.fetchall():
                cursor.execute(f"SELECT {columns} FROM {quote_qualified_name(db, table)}")
                found[str(table)] = sorted(map(repr, cursor.fetchall()))
            return found

    def differences(self, db: str) -> list[tuple[str, object, object]]:
        """(table, its rows at the source, its rows in the copy) of each table that differs."""
        mine, copy = self.contents(db), self.contents(COPY + db)
        wrong: list[tuple[str, object, object]] = []
        for table in sorted({*mine, *copy}):
            one, other = mine.get(table), copy.get(table)
            if one != other:
                wrong.append((table, one, other))
        return wrong

    def _take(self, transaction: SourceTransaction) -> None:
        if transaction.statement is not None:
            self.publish(self.catalog.follow(self.source, transaction.statement))
            return
        [value] = encode_transactions([transaction.changes], self._definition_of, self.catalog.version)
        if value:
            payload = pb.Binlog(tp=pb.Commit, prewrite_value=value).SerializeToString()
            for change in decode_transaction(payload, 1, 1, self.state):
                self._apply(change)

    def _definition_of(self, event: TableMap) -> TableDef | None:
        return self.catalog.find_definition(self.source, event)

    def _apply(self, change: RowChange) -> None:
        table = self.state.find_table(change.table_id)
        assert table is not None
        statement = _statement(RowForms(table, self._dialect), change)
        with self._rows.cursor() as cursor:
            assert cursor.execute(statement.text) == statement.expect, statement.text


def _statement(forms: RowForms, change: RowChange) -> OrderedStatement:
    if change.before is None:
        assert change.after is not None
        return forms.insert(change.after)
    return forms.delete(change.before) if change.after is None else forms.update(change.before, change.after)
