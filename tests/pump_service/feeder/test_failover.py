"""A server, the connection to it or its log is lost: no transaction is lost, and none comes twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.mariadb import MariaDb, MySql, execute, mariadb_in_memory, mysql_in_memory, rows
from support.sourcelog import SERVER_ID, end_of, source_of, transactions_until_now
from support.tcplink import TcpLink
from support.topology import Topology, start_replica

from binlake.errors import LostRange, SourceRefused
from binlake.mysqlbinlog.model import BinlogPosition, SourceTransaction
from binlake.pump_service.feeder.connection import SourceLog, open_log
from binlake.pump_service.feeder.settings import SourceFile

pytestmark = pytest.mark.mariadb


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def topology(request: pytest.FixtureRequest) -> Iterator[Topology]:
    primary: MariaDb = request.getfixturevalue("mysql" if request.param == "mysql" else "mariadb_source")
    with start_replica(primary) as topology:
        execute(primary, "CREATE DATABASE topology", "CREATE TABLE topology.t (id INT PRIMARY KEY)")
        yield topology
        execute(primary, "DROP DATABASE topology")


def _insert(server: MariaDb, first: int, count: int = 3) -> None:
    execute(server, *(f"REPLACE INTO topology.t VALUES ({n})" for n in range(first, first + count)))


def _read_until(log: SourceLog, until: str) -> list[SourceTransaction]:
    """Read the transactions up to the GTID set `until`."""
    transactions: list[SourceTransaction] = []
    while log.position.gtids != until:
        some = log.read(wait_s=60.0)
        assert some, log.trouble
        transactions += some
    return transactions


def _log(source: SourceFile, position: BinlogPosition) -> SourceLog:
    return open_log(source, SERVER_ID, position)


def test_reading_continues_at_the_next_server_of_the_topology(topology: Topology) -> None:
    primary, replica = topology.primary, topology.replica
    start = end_of(primary)
    with TcpLink(primary.host, primary.port) as link:
        source = source_of(replica, host=link.host, port=link.port, addresses=(f"{replica.host}:{replica.port}",))
        log = _log(source, start)
        _insert(primary, 1)
        transactions = _read_until(log, end_of(primary).gtids)
        assert log.server == (link.host, link.port)
        link.cut()
        _insert(primary, 10)
        transactions += _read_until(log, end_of(primary).gtids)
        assert log.server == (replica.host, replica.port)
        log.end()
    assert [(transaction.id, transaction.changes[0].rows) for transaction in transactions] == [
        (transaction.id, transaction.changes[0].rows) for transaction in transactions_until_now(primary, start)
    ]
    assert len(transactions) == 6


def test_a_server_that_lags_is_waited_for(topology: Topology) -> None:
    primary, replica = topology.primary, topology.replica
    start = end_of(primary)
    topology.stop_replicating()
    _insert(primary, 20)
    position = transactions_until_now(primary, start)[-1].end
    log = _log(source_of(replica), position)
    assert log.read(wait_s=0.1) == []
    assert "lacks transactions" in log.trouble
    topology.replicate()
    _insert(primary, 30, 1)
    (transaction,) = _read_until(log, end_of(primary).gtids)
    log.end()
    assert transaction.end.gtids == end_of(primary).gtids


def test_a_server_that_shuts_down_cleanly_is_lost_and_read_on_when_it_is_back(topology: Topology) -> None:
    primary, replica = topology.primary, topology.replica
    topology.wait_for_replica()
    start = end_of(primary)
    log = _log(source_of(replica), start)
    _insert(primary, 35, 1)
    transactions = _read_until(log, end_of(primary).gtids)
    replica.stop()
    while not log.trouble:
        assert log.read(wait_s=0.5) == []
    replica.start()
    topology.replicate()
    _insert(primary, 36, 1)
    transactions += _read_until(log, end_of(primary).gtids)
    log.end()
    assert [transaction.id for transaction in transactions] == [
        transaction.id for transaction in transactions_until_now(primary, start)
    ]
    assert len(transactions) == 2


def test_a_lost_connection_loses_nothing_and_returns_nothing_twice(topology: Topology) -> None:
    primary = topology.primary
    start = end_of(primary)
    with TcpLink(primary.host, primary.port) as link:
        log = _log(source_of(primary, host=link.host, port=link.port), start)
        transactions: list[SourceTransaction] = []
        for round_ in range(5):
            _insert(primary, 100 + 20 * round_, 20)
            transactions += log.read(max_transactions=7, wait_s=60.0)
            link.cut()
            link.mend()
        transactions += _read_until(log, end_of(primary).gtids)
        assert log.connections > 1
        log.end()
    assert [transaction.id for transaction in transactions] == [
        transaction.id for transaction in transactions_until_now(primary, start)
    ]
    assert len(transactions) == 100


def test_a_prepared_transaction_comes_from_the_next_server_when_committed(topology: Topology) -> None:
    primary, replica = topology.primary, topology.replica
    topology.replicate()
    start = end_of(primary)
    with TcpLink(primary.host, primary.port) as link, primary.connect(database="topology") as session:
        source = source_of(replica, host=link.host, port=link.port, addresses=(f"{replica.host}:{replica.port}",))
        log = _log(source, start)
        with session.cursor() as cursor:
            for text in ("XA START 'f'", "INSERT INTO t VALUES (500)", "XA END 'f'", "XA PREPARE 'f'"):
                cursor.execute(text)
            transactions = _read_until(log, end_of(primary).gtids)
            link.cut()
            cursor.execute("XA COMMIT 'f'")
        transactions += _read_until(log, end_of(primary).gtids)
        assert log.server == (replica.host, replica.port)
        log.end()
    assert [len(transaction.changes) for transaction in transactions] == [0, 1]


def test_a_silent_server_counts_as_unavailable(topology: Topology) -> None:
    primary = topology.primary
    with TcpLink(primary.host, primary.port) as link:
        source = source_of(primary, host=link.host, port=link.port, heartbeat=0.1, read_timeout=1.0)
        log = _log(source, end_of(primary))
        _insert(primary, 40, 1)
        assert len(log.read(wait_s=60.0)) == 1
        link.freeze()
        while not log.trouble:
            assert log.read(wait_s=0.5) == []
        assert "not even a heartbeat" in log.trouble
        link.mend()
        _insert(primary, 41, 1)
        assert len(log.read(wait_s=60.0)) == 1
        log.end()


def test_a_quiet_log_is_not_a_silent_server(topology: Topology) -> None:
    log = _log(source_of(topology.primary, heartbeat=0.2, read_timeout=2.0), end_of(topology.primary))
    assert log.read(wait_s=3.0) == []
    assert (log.trouble, log.connections) == ("", 1)
    log.end()


def test_reading_ends_when_another_thread_stops_it(topology: Topology) -> None:
    log = _log(source_of(topology.primary), end_of(topology.primary))
    _insert(topology.primary, 50, 1)
    assert len(log.read(wait_s=60.0)) == 1
    ended = threading.Thread(target=lambda: list(log))
    ended.start()
    log.close()
    ended.join(timeout=30)
    assert not ended.is_alive()
    log.end()


def test_a_second_feeder_with_the_same_server_id_is_reported(topology: Topology) -> None:
    start = end_of(topology.primary)
    first, second = (_log(source_of(topology.primary), start) for _ in range(2))
    _insert(topology.primary, 60, 1)
    assert len(first.read(wait_s=60.0)) == 1
    assert len(second.read(wait_s=60.0)) == 1
    with pytest.raises(SourceRefused, match="server id"):
        first.read(wait_s=5.0)
    first.end()
    second.end()


def test_a_purged_position_names_the_remedy(topology: Topology) -> None:
    server = topology.replica
    old = end_of(server)
    topology.replicate()
    for number in range(2):
        _insert(topology.primary, 70 + number, 1)
        transactions_until_now(server, replace(old, gtids=""), end=end_of(topology.primary))
        execute(server, "FLUSH BINARY LOGS")
    last = end_of(server)
    execute(server, f"PURGE BINARY LOGS TO '{last.file}'")
    for position in (old, replace(old, gtids="")):
        log = _log(source_of(server), position)
        with pytest.raises(LostRange, match=r"purged.*bootstrap"):
            log.read(wait_s=10.0)
        log.end()


def test_a_reset_log_is_distinguished_from_a_purged_one(topology: Topology) -> None:
    server = topology.replica
    topology.stop_replicating()
    execute(server, "CREATE DATABASE own")
    own = end_of(server)
    execute(server, "RESET BINARY LOGS AND GTIDS" if isinstance(server, MySql) else "RESET MASTER")
    positions = [own, BinlogPosition("binlog.000099", 4), BinlogPosition("binlog.000001", 1 << 20)]
    for position in positions:
        log = _log(source_of(server), position)
        with pytest.raises(SourceRefused, match=r"reset.*bootstrap"):
            log.read(wait_s=10.0)
        log.end()


def test_the_server_is_reported_once_before_its_transactions(topology: Topology) -> None:
    primary, named = topology.primary, list[str]()
    start = end_of(primary)
    log = open_log(source_of(primary), SERVER_ID, start, on_server=named.append)
    _insert(primary, 80, 1)
    assert len(log.read(wait_s=60.0)) == 1
    log.end()
    known = open_log(source_of(primary), SERVER_ID, start, last_uuid=named[0], on_server=named.append)
    assert len(known.read(wait_s=60.0)) == 1
    known.end()
    name = "@@server_uuid" if isinstance(primary, MySql) else "@@server_id"
    assert named == [str(rows(primary, f"SELECT {name}")[0][0])]


@pytest.mark.parametrize("name", ["mariadb_source", "mysql"])
def test_file_and_offset_are_valid_for_one_server_only(name: str, request: pytest.FixtureRequest) -> None:
    server: MariaDb = request.getfixturevalue(name)
    log = open_log(source_of(server), SERVER_ID, replace(end_of(server), gtids=""), last_uuid="another")
    with pytest.raises(SourceRefused, match="belongs to server another"):
        log.read(wait_s=10.0)
    log.end()


@pytest.mark.parametrize("name", ["mariadb_source", "mysql"])
def test_users_without_privileges_are_refused(name: str, request: pytest.FixtureRequest) -> None:
    server: MariaDb = request.getfixturevalue(name)
    execute(server, "CREATE USER weak IDENTIFIED BY 'p'", "GRANT SELECT ON *.* TO weak")
    try:
        for user, password, hint in (("weak", "p", "GRANT REPLICATION SLAVE"), ("weak", "wrong", "password")):
            log = _log(source_of(server, user=user, password=password), end_of(server))
            with pytest.raises(SourceRefused, match=hint):
                log.read(wait_s=10.0)
            log.end()
    finally:
        execute(server, "DROP USER weak")


def test_reading_continues_after_a_server_is_killed_and_restarted() -> None:
    with mariadb_in_memory(MariaDb.list_source_options(31)) as server:
        execute(server, "CREATE DATABASE topology", "CREATE TABLE topology.t (id INT PRIMARY KEY)")
        start = end_of(server)
        log = _log(source_of(server), start)
        _insert(server, 1)
        transactions = _read_until(log, end_of(server).gtids)
        server.kill9()
        assert log.read(wait_s=0.5) == []
        assert log.trouble
        server.restart()
        _insert(server, 10)
        transactions += _read_until(log, end_of(server).gtids)
        log.end()
        assert len(transactions) == len({transaction.id for transaction in transactions}) == 6
        assert rows(server, "SELECT COUNT(*) FROM topology.t") == [(6,)]


@pytest.mark.parametrize("family", ["mariadb", pytest.param("mysql", marks=pytest.mark.soak)])
def test_reading_continues_after_a_clean_restart(family: str) -> None:
    """R-10: a server that shuts down ends its dump with an EOF packet, as one does that has nothing more to send."""
    with (
        mariadb_in_memory(MariaDb.list_source_options(32))
        if family == "mariadb"
        else mysql_in_memory(MySql.list_source_options())
    ) as server:
        execute(server, "CREATE DATABASE topology", "CREATE TABLE topology.t (id INT PRIMARY KEY)")
        log = _log(source_of(server), end_of(server))
        _insert(server, 1)
        transactions = _read_until(log, end_of(server).gtids)
        server.restart()
        _insert(server, 10)
        transactions += _read_until(log, end_of(server).gtids)
        assert log.connections == 2
        log.end()
        assert len({transaction.id for transaction in transactions}) == len(transactions) == 6


def test_a_lost_connection_before_the_first_transaction_returns_none_twice(mysql: MySql) -> None:
    execute(mysql, "CREATE DATABASE filestart", "CREATE TABLE filestart.t (id INT PRIMARY KEY)")
    start = replace(end_of(mysql), gtids="")
    with TcpLink(mysql.host, mysql.port) as link:
        log = _log(source_of(mysql, host=link.host, port=link.port), start)
        # Transactions of the file before the position were read and skipped.
        assert log.read(wait_s=0.5) == []
        link.cut()
        link.mend()
        execute(mysql, "INSERT INTO filestart.t VALUES (1)", "DROP DATABASE filestart")
        transactions = _read_until(log, end_of(mysql).gtids)
        assert log.connections == 2
        log.end()
    assert len(transactions) == 2


def test_reading_continues_after_numbers_that_fall_in_their_domain(mariadb_source: MariaDb) -> None:
    """Without gtid_strict_mode a session may set any gtid_seq_no: file and offset tell where reading was."""
    server = mariadb_source
    execute(server, "CREATE DATABASE fallen", "CREATE TABLE fallen.t (id INT PRIMARY KEY)")
    start = end_of(server)
    number = int(start.gtids.split("-")[2])
    with server.connect() as session, session.cursor() as cursor:
        for n, next_number in enumerate((number + 100, number + 101, number + 50, number + 51, number + 102)):
            cursor.execute(f"SET gtid_seq_no = {next_number}")
            cursor.execute(f"INSERT INTO fallen.t VALUES ({n})")
    end, uuid = end_of(server), str(rows(server, "SELECT @@server_id")[0][0])
    everything = transactions_until_now(server, start, end=end)
    assert len(everything) == 5
    for index, transaction in enumerate(everything[:-1]):
        log = open_log(source_of(server), SERVER_ID, transaction.end, last_uuid=uuid)
        later: list[SourceTransaction] = []
        while len(later) < 4 - index:
            later += log.read(wait_s=30.0)
            assert not log.trouble
        log.end()
        assert [one.id for one in later] == [one.id for one in everything[index + 1 :]]
    execute(server, "DROP DATABASE fallen")
