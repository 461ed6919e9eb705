"""One schema's history, drawn from a seed: tables, DDL and rows, as the source accepts them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, TypeAlias

import pymysql
from chapters import draw_chapter
from shards import Shards
from support.mariadb import MariaDb
from support.randomalters import RandomAlters

from binlake.base.sqlsession import set_variables

Link: TypeAlias = "pymysql.connections.Connection[Any]"
KINDS = ("alters", "alters", "chapter", "chapter", "both", "shards")
"""What a story may be about: random tables with random ALTERs, a chapter, both of them, or a table in two shards."""


class Story:
    """The history of the database `s<seed>`. `ran`: the statements that the server accepted, in order.

    `shards`: the two tables that become one at the target, if the story has such.
    """

    def __init__(self, seed: int, server: MariaDb) -> None:
        self.db = f"s{seed}"
        self.ran: list[str] = []
        self._draw, self._family = Random(seed), server.name
        kind = self._draw.choice(KINDS)
        self.shards = Shards(self._draw, self.db) if kind == "shards" else None
        self._alters = kind in ("alters", "both")
        self._chapter = draw_chapter(self._draw, server.name) if kind in ("chapter", "both") else None

    def create(self, link: Link) -> None:
        """Create the database and the tables of its chapter."""
        self._run(link, f"CREATE DATABASE {self.db} CHARACTER SET utf8mb4")
        self._begin(link)
        created = self._chapter[0] if self._chapter else self.shards.create() if self.shards else ()
        for statement in created:
            self._run(link, statement)

    def run(self, link: Link, steps: int) -> None:
        """Run the next `steps` steps, with all settings of the session as a new one has them."""
        self._begin(link)
        draws = self._choose_draws()
        alters = RandomAlters(self._draw.getrandbits(32), link, self._family, self.db) if self._alters else None
        for _ in range(steps):
            if alters is not None:
                alters.step()
                self.ran += alters.ran
                alters.ran.clear()
            for statement in draws(self._draw):
                self._run(link, statement)

    def finish(self, link: Link) -> None:
        """Give both shards the same definition: rows may wait for that."""
        if self.shards is not None:
            self._begin(link)
            for statement in self.shards.finish():
                self._run(link, statement)

    def _choose_draws(self) -> Callable[[Random], Any]:
        if self.shards is not None:
            return self.shards.draw_next
        return self._chapter[1] if self._chapter else lambda _: ()

    def _begin(self, link: Link) -> None:
        set_variables(link)
        link.select_db(self.db)

    def _run(self, link: Link, statement: str) -> None:
        with suppress(pymysql.err.Error), link.cursor() as cursor:
            cursor.execute(statement)
            self.ran.append(statement)
