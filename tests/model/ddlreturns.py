"""The operator's steps after a rename into the filter, which no target can run, as it lacks the rows
(docs/reference/filters.md).

The windows continue to just before the DDL, the table is copied to the target as it was at the DDL's commit_ts, and
this commit_ts is added to `filter.ignore-txn-commit-ts`. Without these steps no window over the DDL may be made.
"""

from __future__ import annotations

from contextlib import closing

from ddltables import View
from ddlworld import State, World
from modelerrors import Wrong
from modelrun import Model
from modelwindow import Converter

from binlake.ddl.definitions import IGNORED, RENAMED_IN
from binlake.dialect import DdlText, map_ddl
from binlake.errors import TargetRefused
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide
from binlake.statements.literal import quote, quote_qualified_name
from binlake.target.session.session import TargetSession
from binlake.window.manifest import ApplyManifest

_HEX = ("BIT", "VARBINARY", "BLOB")


class Returns:
    """The renames into the filter of `world`, and the operator who handles them."""

    def __init__(self, world: World, model: Model, converter: Converter) -> None:
        self._world, self._model, self._converter = world, model, converter

    def require_answered(self, manifest: ApplyManifest) -> None:
        """Raise Wrong if a window was made over a rename into the filter that was not handled."""
        passed = [ts for ts in self._world.returned if manifest.lo < ts <= manifest.hi]
        if set(passed) - set(self._converter.ignored):
            raise Wrong(f"a window over renames into the filter, and nobody copied the tables: {passed}")

    def answer(self, error: TargetRefused, lo: int, hi: int, ends: list[int]) -> int:
        """Do what `error` of the window (lo, hi] says, or what must come before that; return where the window ends
        then.

        Raises `error` if it is about another DDL, or names no remedy.
        """
        at = int(error.where.get("commit_ts", 0))
        if at not in self._world.returned or RENAMED_IN not in error.message or IGNORED not in error.hint:
            raise error
        last = max((ts for ts in ends if ts < at), default=0)
        if lo < last:
            return last
        self._copy(at)
        self._converter.ignored += (at,)
        self._model.happened["returned"] += 1
        return hi

    def ahead(self, commit_ts: int) -> State:
        """The tables that are at the target already although their DDL is after `commit_ts`."""
        copied = [ts for ts in self._converter.ignored if ts > commit_ts]
        return {self._name(ts): self._world.at(ts)[self._name(ts)] for ts in copied}

    def _name(self, at: int) -> tuple[str, str]:
        return self._world.renames.shown(*self._world.returned[at].full_name)

    def _copy(self, at: int) -> None:
        """Copy the table as it is at the source at `at`, replacing one that stayed when a table was renamed out."""
        view, (db, name) = self._world.returned[at], self._name(at)
        table = next(one for one in self._converter.tables(at) if (one.db, one.name) == (db, name))
        after = DdlSide((), (table,), SourceSession(self._world.told_zone))
        text = f"CREATE TABLE {quote_qualified_name(db, name)} {view.create_sql()}"
        made = map_ddl(DdlText(at, db, name, text, DdlSide((), ()), after), self._model.dialect)
        with closing(TargetSession(self._model.target)) as session:
            session.execute("SET SESSION default_storage_engine = InnoDB")
            session.execute(f"DROP TABLE IF EXISTS {quote_qualified_name(db, name)}")
            for sql in made.sql:
                session.execute(sql)
            for row in self._world.at(at)[db, name][1]:
                values = (_literal(text, view, n) for n, text in enumerate(row))
                session.execute(f"INSERT INTO {quote_qualified_name(db, name)} VALUES ({', '.join(values)})")
            session.execute("COMMIT")


def _literal(text: str | None, view: View, number: int) -> str:
    if text is None:
        return "NULL"
    return f"X'{text}'" if view.columns[number].type.sql.startswith(_HEX) else quote(text)
