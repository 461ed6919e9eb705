"""A MariaDB without writers that stands in for a TiDB server which is read as of a commit_ts, for loads by SQL.

The proxy `Snapshots` sits between it and its clients. The proxy answers `SET SESSION tidb_snapshot = …` itself and
records it; the server answers everything else. The server must hold what the source held at that commit_ts.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from support.mariadb import MariaDb, execute

_OK = b"\x00\x00\x00\x02\x00\x00\x00"
_QUERY = 3
_SNAPSHOT = "SET SESSION tidb_snapshot = "


class Snapshots:
    """Use as a context manager. `asked`: each tidb_snapshot that a session set; `queries`: all queries.

    `refuse`: a predicate on each query; if it is true, the connection is broken.
    """

    def __init__(self, server: MariaDb, refuse: Callable[[str], bool] = lambda _: False) -> None:
        self.asked: list[str] = []
        self.queries: list[str] = []
        self.refuse = refuse
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Snapshots:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing the listener wakes up accept() on some systems only.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def sql(self) -> dict[str, Any]:
        """The section [source.sql]."""
        return {"host": "127.0.0.1", "port": self.port, "user": self._server.user}

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((self._server.host, self._server.port))
            for work in (self._requests, self._answers):
                threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with client.makefile("rb") as stream, contextlib.suppress(OSError):
            while len(head := stream.read(4)) == 4:
                body = stream.read(int.from_bytes(head[:3], "little"))
                if head[3] or body[:1] != bytes((_QUERY,)):
                    server.sendall(head + body)
                    continue
                text = body[1:].decode(errors="replace")
                self.queries.append(text)
                if self.refuse(text):
                    break
                if text.startswith(_SNAPSHOT):
                    self.asked.append(text.removeprefix(_SNAPSHOT).strip("'"))
                    client.sendall(len(_OK).to_bytes(3, "little") + b"\x01" + _OK)
                else:
                    server.sendall(head + body)
        _end(client, server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        _end(client, server)


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def write_history(server: MariaDb, jobs: Iterable[Mapping[str, object]]) -> None:
    """Fill TiDB's tables of DDL jobs: `jobs` have ended, none runs."""
    columns = "(job_id BIGINT NOT NULL PRIMARY KEY, job_meta LONGBLOB)"
    execute(
        server,
        f"CREATE OR REPLACE TABLE mysql.tidb_ddl_history {columns}",
        f"CREATE OR REPLACE TABLE mysql.tidb_ddl_job {columns}",
    )
    with server.connect() as link, link.cursor() as cursor:
        values = [(job["id"], json.dumps(job)) for job in jobs]
        cursor.executemany("INSERT INTO mysql.tidb_ddl_history (job_id, job_meta) VALUES (%s, %s)", values)
        link.commit()
