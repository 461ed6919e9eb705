"""A source with one DDL that a target may not accept, and the rules by which an operator works around it."""

from __future__ import annotations

from random import Random
from typing import Any

from modellog import log_of
from modelwindow import NAME, Converter
from support.workload import Workload, integer, text

from binlake.config import Replication
from binlake.rules import Rules


class Story:
    """CREATE TABLE d.t, two rows, ADD COLUMN w (with `tail` after its text), a row with it; and their binlogs."""

    def __init__(self, tail: str = "", again: bool = False) -> None:
        w = Workload()
        w.create_database("d")
        w.create_table("d", "t", [integer("id"), text("v")], ["id"])
        w.begin().insert("d", "t", id=1, v="a").insert("d", "t", id=2, v="b").commit()
        self.ddl_ts = w.add_column("d", "t", integer("w"))
        w.begin().insert("d", "t", id=3, v="c", w=7).commit()
        if again:
            w.begin().update("d", "t", {"id": 1, "v": "a", "w": None}, w=8).commit()
        self.log = log_of(w, lambda commit_ts, query: query + (tail if commit_ts == self.ddl_ts else ""))

    def converter(self, **config: Any) -> Converter:
        return Converter(self.log, Random(0), rules(**config))  # type: ignore[arg-type]


def rules(**config: Any) -> Rules:
    return Rules.of(Replication.model_validate({"name": NAME, "lake": {"path": "x"}, **config}))


def replaced(ts: int, sql: str) -> dict[str, Any]:
    return {"ddl-replacement": [{"commit-ts": str(ts), "sql": sql}]}
