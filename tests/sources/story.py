"""One schema's history, drawn from a seed: tables, DDL and rows, as the source accepts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeAlias

import pymysql
from chapters import draw_chapter
from shards import Placed, Shards
from support.mariadb import MariaDb
from support.randomalters import RandomAlters

from binlake.common.sqllink import set_variables

Link: TypeAlias = "pymysql.connections.Connection[Any]"
Links: TypeAlias = Mapping[int, Link]
"""A session at each source, by its port."""
KINDS = ("alters", "alters", "chapter", "chapter", "both", "shards")
"""What a story may be about: random tables with random ALTERs, a chapter, both of them, or a table in two shards."""


class Story:
    """The history of the database `s<seed>` of `server`. `ran`: the statements that the server accepted, in order.

    `shards`: the two tables that become one at the target, if the story has such; the second one is at `other`.
    """

    def __init__(self, seed: int, server: MariaDb, other: MariaDb) -> None:
        self.db, self.family = f"s{seed}", server.name
        self.ran: list[str] = []
        self._draw, self._ports = Random(seed), (server.port, other.port)
        kind = self._draw.choice(KINDS)
        self.shards = Shards(self._draw, self.db) if kind == "shards" else None
        self._alters = kind in ("alters", "both")
        self._chapter = draw_chapter(self._draw, server.name) if kind in ("chapter", "both") else None

    @property
    def databases(self) -> Sequence[str]:
        """The names of its databases at the sources; the first one is also that at the target."""
        return (self.db, f"{self.db}_b")

    def create(self, links: Links) -> None:
        """Create the database and the tables of its chapter."""
        self._run(links, [f"CREATE DATABASE {self.db} CHARACTER SET utf8mb4"], 0)
        self._begin(links)
        if self.shards is not None:
            self._run_at_shards(links, self.shards.create())
        elif self._chapter is not None:
            self._run(links, self._chapter[0])

    def run(self, links: Links, steps: int) -> None:
        """Run the next `steps` steps, with all settings of the session as a new one has them."""
        self._begin(links)
        link = links[self._ports[0]]
        alters = RandomAlters(self._draw.getrandbits(32), link, self.family, self.db) if self._alters else None
        for _ in range(steps):
            if alters is not None:
                alters.step()
                self.ran += alters.ran
                alters.ran.clear()
            if self.shards is not None:
                self._run_at_shards(links, self.shards.draw_next(self._draw))
            elif self._chapter is not None:
                self._run(links, self._chapter[1](self._draw))

    def finish(self, links: Links) -> None:
        """Give both shards the same definition: rows may wait for that."""
        if self.shards is not None:
            self._begin(links)
            self._run_at_shards(links, self.shards.finish())

    def _begin(self, links: Links) -> None:
        for port in self._ports:
            set_variables(links[port])
        links[self._ports[0]].select_db(self.db)

    def _run_at_shards(self, links: Links, statements: Sequence[Placed]) -> None:
        for place, statement in statements:
            self._run(links, [statement], place)

    def _run(self, links: Links, statements: Sequence[str], place: int = 0) -> None:
        for statement in statements:
            with suppress(pymysql.err.Error), links[self._ports[place]].cursor() as cursor:
                cursor.execute(statement)
                self.ran.append(statement)
