"""One database's history, drawn from a seed: tables, DDL and rows of several sessions, as the source accepts them."""

from __future__ import annotations

from contextlib import closing, suppress
from random import Random
from typing import Any

import pymysql
from chapters import draw_chapters
from support.mariadb import MariaDb, execute
from support.randomalters import RandomAlters

from binlake.base.sqlsession import set_variables


class Story:
    """The history of the database `s<seed>`. `ran`: the statements that the server accepted, in order.

    It has random tables, and two chapters.
    """

    def __init__(self, seed: int, server: MariaDb) -> None:
        self.db = f"s{seed}"
        self._draw, self._server = Random(seed), server
        self.ran: list[str] = []
        self._chapters = draw_chapters(self._draw, server.name)

    def create(self) -> None:
        """Create the database and the tables of its chapters."""
        execute(self._server, f"CREATE DATABASE {self.db} CHARACTER SET utf8mb4")
        with closing(self._connect()) as link:
            for statements, _ in self._chapters:
                for statement in statements:
                    self._run(link, statement)

    def run(self, steps: int) -> None:
        """Run the next `steps` steps, in a new session."""
        with closing(self._connect()) as link:
            alters = RandomAlters(self._draw.getrandbits(32), link, self._server.name, self.db)
            for _ in range(steps):
                alters.step()
                for _, draws in self._chapters:
                    for statement in draws(self._draw):
                        self._run(link, statement)
            self.ran += alters.ran

    def _connect(self) -> pymysql.connections.Connection[Any]:
        link = self._server.connect(database=self.db)
        set_variables(link)
        return link

    def _run(self, link: pymysql.connections.Connection[Any], statement: str) -> None:
        with suppress(pymysql.err.Error), link.cursor() as cursor:
            cursor.execute(statement)
            self.ran.append(statement)
