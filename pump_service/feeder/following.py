"""One statement of a source as changes of the catalog: executed at the tracker, then described, then written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog

from binlake.dialect.classify import DdlKind
from binlake.dialect.tokens import Token, tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.alters import standardize_specs
from binlake.mysqlbinlog.definitions.clausetexts import drop_sequence_defaults, refuse_unlogged_rows
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, TableDescription
from binlake.mysqlbinlog.definitions.online import (
    KEY,
    OnlineTable,
    find_candidate_base,
    find_ghost_base,
    find_log_base,
    find_trash_base,
    is_sentry,
    names_table,
)
from binlake.mysqlbinlog.definitions.partitions import add_partitions, find_truncated_partitions
from binlake.mysqlbinlog.definitions.statements import SingleStatement, build_single_alter, drop_table
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY, build_table_info, with_origin_defaults
from binlake.mysqlbinlog.definitions.writer import (
    DefinitionChange,
    JobWriter,
    SourceNames,
    build_database_info,
    build_name_clash_error,
    create_text,
)
from binlake.mysqlbinlog.model import LoggedSession
from binlake.pump_service.feeder.tracker import SourceTracker
from binlake.pump_service.feeder.unloggedrows import (
    SPECS_AT,
    exchange_partition,
    is_exchange,
    is_left_out,
    refuse_copied_definition,
    refuse_leaving,
)
from binlake.rows.schema import Action, DbInfo, TableDef
from binlake.rows.schema.forms import Json, fold_name, fold_pair
from binlake.rows.schema.job import read_zone
from binlake.statements.literal import quote_name, quote_qualified_name

log = structlog.get_logger()


class SourceFollower:
    """Follows one source. `online`: the tables of its online-DDL tools, by (db, table) folded."""

    def __init__(self, names: SourceNames, tracker: SourceTracker, writer: JobWriter, jobs: Iterable[Json]) -> None:
        self._names, self._tracker, self._writer = names, tracker, writer
        self.online: dict[tuple[str, str], OnlineTable] = {}
        self._stale = True
        for job in jobs:
            if job["feeder"]["source"] == names.name and KEY in job["feeder"]:
                self._remember(OnlineTable.from_json(job["feeder"][KEY]))

    def invalidate_tracker(self) -> None:
        """Rebuild the tracker's databases before the next statement."""
        self._stale = True

    def is_left_out(self, single: SingleStatement) -> bool:
        """Whether `single` is only about tables that are left out. Raises SchemaError if it also moves others' rows."""
        return fold_pair((single.db, single.table)) not in self.online and is_left_out(self._names, single)

    def follow(self, singles: Sequence[SingleStatement], session: LoggedSession) -> list[DefinitionChange]:
        """The changes of `singles`, in order. Raises SchemaError, SourceUnavailable; then nothing has changed.

        A refusal counts only if the tracker has just been rebuilt: its databases may have been dropped, or a different
        server may answer now.
        """
        if not self._stale:
            try:
                return self._follow_once(singles, session)
            except SchemaError as error:
                log.info("tracker_rebuilt", source=self._names.name, reason=str(error))
        return self._follow_once(singles, session)

    def _follow_once(self, singles: Sequence[SingleStatement], session: LoggedSession) -> list[DefinitionChange]:
        restore, online = self._writer.save_state(), dict(self.online)
        try:
            if singles and self._stale:
                self._tracker.rebuild(self._writer.describe_databases(self._names))
                self._stale = False
            return [change for single in singles for change in self._follow_single(single, session)]
        except BaseException:
            restore()
            self.online, self._stale = online, True
            raise

    def _follow_single(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange]:
        of_tool = self._follow_online(single, session) if single.table else None
        return _FOLLOW[single.kind](self, single, session) if of_tool is None else of_tool

    # Databases.

    def _create_database(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange]:
        former = self._writer.find_database(self._names, single.db)
        own = self._writer.look_up_own_name(former) if former is not None else single.db
        if former is not None and own == single.db and not _is_or_replace(single):
            return []
        self._tracker.run(single, session)
        if (
            own != single.db
            and self._describe_tracked_database(own).name != self._describe_tracked_database(single.db).name
        ):
            raise build_name_clash_error((own, single.db))
        if former is not None and not _is_or_replace(single):
            return []
        dropped = [] if former is None else [self._drop_known_database(former, single.db)]
        return [*dropped, self._writer.create_database(self._names, self._describe_tracked_database(single.db))]

    def _alter_database(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange]:
        db = self._writer.require_database(self._names, single.db)
        self._tracker.run(single, session)
        info = build_database_info(db.id, db.name, self._describe_tracked_database(single.db))
        if (db.charset, db.collate) == (info["charset"], info["collate"]):
            return []
        text = f"ALTER DATABASE {quote_name(db.name)} CHARACTER SET {info['charset']} COLLATE {info['collate']}"
        return [self._writer.build_change(self._names, Action.SCHEMA_CHARSET, tokenize(text), db, db_info=info)]

    def _drop_database(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange]:
        db = self._writer.find_database(self._names, single.db)
        if db is None:
            return []
        self._tracker.run(single, session)
        return [self._drop_known_database(db, single.db)]

    def _drop_known_database(self, db: DbInfo, name: str) -> DefinitionChange:
        self.online = {key: table for key, table in self.online.items() if fold_name(table.db) != fold_name(name)}
        text = tokenize(f"DROP DATABASE {quote_name(db.name)}")
        return self._writer.build_change(self._names, Action.DROP_SCHEMA, text, db)

    # Tables.

    def _create_table(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange]:
        former = self._writer.find_table(self._names, single.db, single.table)
        if former is not None and former.name == single.table and not _is_or_replace(single):
            return []
        refuse_copied_definition(self._names, single)
        self._tracker.run(single, session)
        described = self._describe_tracked_table(single.db, single.table)
        if former is not None and former.name != described.name:
            raise build_name_clash_error((f"{single.db}.{former.name}", f"{single.db}.{described.name}"))
        if former is not None and not _is_or_replace(single):
            return []
        base = self._find_base_of_copy(described, find_ghost_base(described.name))
        if base is not None and self._has_log(single.db, base):
            self._tracker.run(drop_table((single.db, single.table)), session)
            return [self._record_online_table(OnlineTable(single.db, single.table, base, "shadow"), single)]
        dropped = [] if former is None else [self._writer.drop_table(self._names, former)]
        made = [*dropped, self._writer.create_table(self._names, described)]
        copied = self._find_base_of_copy(described, find_candidate_base(described.name))
        if copied is not None:
            made.append(self._record_online_table(OnlineTable(single.db, single.table, copied, "candidate"), single))
        return made

    def _drop_table(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange]:
        former = self._writer.find_table(self._names, single.db, single.table)
        if former is None:
            return []
        self._tracker.run(single, session)
        return [self._writer.drop_table(self._names, former)]

    def _truncate_table(self, single: SingleStatement, _session: LoggedSession) -> list[DefinitionChange]:
        former = self._writer.require_table(self._names, single.db, single.table)
        text = tokenize(f"TRUNCATE TABLE {quote_qualified_name(former.db, former.name)}")
        info = {**former.raw, "id": self._writer.allocate_id()}
        return [self._build_change(Action.TRUNCATE_TABLE, text, former, info)]

    def _rename_table(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange]:
        former = self._writer.find_table(self._names, single.db, single.table)
        db, name = single.to or ("", "")
        if former is None:
            # A view, a sequence, or a table that IF EXISTS skips. If it is an unknown table, its rows will raise.
            log.info("rename_skipped", source=self._names.name, db=single.db, name=single.table)
            return []
        refuse_leaving(self._names, single)
        home = self._writer.require_database(self._names, db)
        other = self._writer.find_table(self._names, db, name)
        if other is not None and other.id != former.id:
            raise build_name_clash_error((f"{db}.{other.name}", f"{db}.{name}"))
        self._tracker.run(single, session)
        described = self._describe_tracked_table(db, name)
        info = {**former.raw, "name": {"O": name, "L": fold_name(name)}, CREATE_KEY: described.create}
        text = tokenize(
            f"RENAME TABLE {quote_qualified_name(former.db, former.name)} TO {quote_qualified_name(home.name, name)}"
        )
        return [self._writer.build_change(self._names, Action.RENAME_TABLE, text, home, former, info)]

    def _alter_table(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange]:
        former = self._writer.require_table(self._names, single.db, single.table)
        specs = single.tokens[SPECS_AT:]
        if is_exchange(specs):
            return [exchange_partition(self._writer, self._names, (single.db, former), specs)]
        refuse_unlogged_rows(specs)
        single = replace(single, tokens=tuple(drop_sequence_defaults(single.tokens)))
        specs = single.tokens[SPECS_AT:]
        self._tracker.run(single, session)
        described = self._describe_tracked_table(single.db, single.table)
        altered = standardize_specs(specs, former, create_text(described))
        if not altered.specs:
            return []
        info = build_table_info(described, former.id, former.name, former, altered.former)
        info = with_origin_defaults(info, former, _format_current_times(session))
        emptied = find_truncated_partitions(specs)
        info = add_partitions(info, described.create, described.flavor, self._writer.allocate_id, former, emptied)
        clauses = altered.join_clauses()
        head = tokenize(f"ALTER TABLE {quote_qualified_name(former.db, former.name)}")
        text = [*head, replace(clauses[0], space=True), *clauses[1:]]
        return [self._build_change(altered.action, text, former, info, session)]

    def _build_change(
        self, action: Action, text: Sequence[Token], former: TableDef, info: Json, session: LoggedSession | None = None
    ) -> DefinitionChange:
        home = self._writer.find_database_of(former)
        return self._writer.build_change(self._names, action, text, home, former, info, session=session)

    # Tables of online-DDL tools.

    def _follow_online(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange] | None:
        """The changes of a statement on an online-DDL tool's table; None for a statement on any other table."""
        if single.kind is DdlKind.OTHER:
            return self._begin_copying(single, session)
        known = self.online.get(fold_pair((single.db, single.table)))
        if known is None:
            return self._begin_trash(single)
        if known.role == "candidate":
            return self._follow_candidate(known, single, session)
        if single.kind is DdlKind.RENAME_TABLE and single.to is not None:
            return self._rename_online(known, single, single.to)
        if single.kind is DdlKind.DROP_TABLE:
            return [self._record_online_table(replace(known, role="gone"), single)]
        if single.kind is DdlKind.ALTER_TABLE and known.role == "shadow":
            refuse_unlogged_rows(single.tokens[SPECS_AT:])
            return [self._record_online_table(known.with_alter(single.text, session), single)]
        return []

    def _follow_candidate(
        self, known: OnlineTable, single: SingleStatement, session: LoggedSession
    ) -> list[DefinitionChange] | None:
        """A candidate is a table like any other, whose ALTERs are remembered in case that a tool's triggers follow."""
        if single.kind is DdlKind.ALTER_TABLE:
            altered = known.with_alter(single.text, session)
        elif single.kind in (DdlKind.RENAME_TABLE, DdlKind.DROP_TABLE, DdlKind.CREATE_TABLE, DdlKind.CREATE_TABLE_LIKE):
            altered = replace(known, role="gone")
        else:
            return None
        changes = _FOLLOW[single.kind](self, single, session)
        again = self.online.get(fold_pair(known.name))
        # CREATE OR REPLACE may have made another candidate of this name.
        return [*changes, self._record_online_table(altered, single)] if again is known else changes

    def _begin_copying(self, single: SingleStatement, session: LoggedSession) -> list[DefinitionChange]:
        """The tool's trigger on its base table: the candidate that it writes to is a shadow from here on."""
        base = fold_pair((single.db, single.table))
        candidates = [table for table in self.online.values() if table.role == "candidate"]
        found = [t for t in candidates if fold_pair((t.db, t.base)) == base and names_table(single.tokens, t.table)]
        changes = list[DefinitionChange]()
        for table in found:
            changes += self._drop_table(drop_table(table.name), session)
            changes.append(self._record_online_table(replace(table, role="shadow"), single))
        return changes

    def _begin_trash(self, single: SingleStatement) -> list[DefinitionChange] | None:
        """The tool creates its log or sentry table, or renames the original away to make room for the shadow."""
        if single.kind is DdlKind.CREATE_TABLE:
            base = self._find_base_of_trash(single)
            if base is not None:
                return [self._record_online_table(OnlineTable(single.db, single.table, base, "trash"), single)]
        if single.kind is DdlKind.RENAME_TABLE and single.to is not None and self._has_shadow(single.db, single.table):
            base = find_trash_base(single.to[1])
            if base is not None and fold_name(base) == fold_name(single.table):
                return [self._record_online_table(OnlineTable(*single.to, single.table, "trash"), single)]
        return None

    def _rename_online(
        self, known: OnlineTable, single: SingleStatement, to: tuple[str, str]
    ) -> list[DefinitionChange]:
        is_base = fold_pair(to) == fold_pair((known.db, known.base))
        gone = [self._record_online_table(replace(known, role="gone"), single)]
        if known.role == "trash" and is_base:
            return gone  # the tool undoes its swap
        if known.role == "trash":
            return [*gone, self._record_online_table(replace(known, db=to[0], table=to[1]), single)]
        if not is_base:
            raise SchemaError(
                "the shadow table of an online-DDL tool is renamed to something other than its base table, but its rows"
                " were not replicated",
                hint="take a new snapshot of the source after this statement (binlake bootstrap)",
                where={"table": f"{known.db}.{known.table}", "to": ".".join(to)},
            )
        alters = [(build_single_alter(known.db, known.base, text), session) for text, session in known.alters]
        return [*gone, *(change for alter, session in alters for change in self._alter_table(alter, session))]

    def _find_base_of_trash(self, single: SingleStatement) -> str | None:
        """The base of the log or of the sentry that a CREATE TABLE makes; None for another table."""
        base = find_log_base(single.table, single.tokens)
        if base is not None and self._writer.find_table(self._names, single.db, base) is not None:
            return base
        base = find_trash_base(single.table)
        return base if base is not None and is_sentry(single.tokens) and self._has_shadow(single.db, base) else None

    def _has_log(self, db: str, base: str) -> bool:
        logs = [table for table in self.online.values() if table.role == "trash"]
        return any(fold_pair(table.name) == fold_pair((db, f"_{base}_ghc")) for table in logs)

    def _has_shadow(self, db: str, base: str) -> bool:
        wanted = fold_pair((db, base))
        return any(
            table.role == "shadow" and fold_pair((table.db, table.base)) == wanted for table in self.online.values()
        )

    def _find_base_of_copy(self, described: TableDescription, name: str | None) -> str | None:
        """The table `name` if the new table `described` has the same columns; else None."""
        base = self._writer.find_table(self._names, described.db, name) if name else None
        if base is None:
            return None
        copied = self._describe_tracked_table(described.db, base.name)
        return base.name if copied.columns == described.columns else None

    def _record_online_table(self, table: OnlineTable, single: SingleStatement) -> DefinitionChange:
        self._remember(table)
        if table.is_left_out:
            log.info("online_ddl_table_left_out", source=self._names.name, table=".".join(table.name), of=table.base)
        home = self._writer.require_database(self._names, table.db)
        return self._writer.record_note(self._names, single.text, home, table.table, {KEY: table.to_json()})

    def _remember(self, table: OnlineTable) -> None:
        if table.role == "gone":
            self.online.pop(fold_pair(table.name), None)
        else:
            self.online[fold_pair(table.name)] = table

    # Descriptions from the tracker.

    def _describe_tracked_table(self, db: str, table: str) -> TableDescription:
        description = self._tracker.describe_table(db, table)
        if description is None:
            raise SchemaError(
                "after the statement the tracker does not have its table", where={"table": f"{db}.{table}"}
            )
        return description

    def _describe_tracked_database(self, db: str) -> DatabaseDescription:
        description = self._tracker.describe_database(db)
        if description is None:
            raise SchemaError("after the statement the tracker does not have its database", where={"database": db})
        return description


_FOLLOW: Mapping[DdlKind, Callable[[SourceFollower, SingleStatement, LoggedSession], list[DefinitionChange]]] = {
    DdlKind.CREATE_DATABASE: SourceFollower._create_database,
    DdlKind.ALTER_DATABASE: SourceFollower._alter_database,
    DdlKind.DROP_DATABASE: SourceFollower._drop_database,
    DdlKind.CREATE_TABLE: SourceFollower._create_table,
    DdlKind.CREATE_TABLE_LIKE: SourceFollower._create_table,
    DdlKind.DROP_TABLE: SourceFollower._drop_table,
    DdlKind.TRUNCATE_TABLE: SourceFollower._truncate_table,
    DdlKind.RENAME_TABLE: SourceFollower._rename_table,
    DdlKind.ALTER_TABLE: SourceFollower._alter_table,
}


def _is_or_replace(single: SingleStatement) -> bool:
    """Whether the statement is CREATE OR REPLACE."""
    return any(token.is_word("REPLACE") for token in single.tokens[:3])


def _format_current_times(session: LoggedSession) -> dict[str, str]:
    """The statement's time as column text by type: a TIMESTAMP in UTC, a DATETIME in the session's zone.

    Without the latter if this machine does not know the zone; `SYSTEM` is treated as UTC.
    """
    at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=session.timestamp_us or 0)
    name = session.time_zone or "UTC"
    zone = UTC if name.upper() == "SYSTEM" else read_zone(name)
    moments = {"timestamp": _format_time(at)}
    return moments if zone is None else {**moments, "datetime": _format_time(at.astimezone(zone))}


def _format_time(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
