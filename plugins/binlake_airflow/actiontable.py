"""The table of actions, by group: each is one line of the page, one form, and one command."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from binlake_airflow.actions import (
    ACT,
    DAG,
    FILE,
    PAUSE,
    PAUSE_FEED,
    PUMP_FLAGS,
    RESUME_FEED,
    UNPAUSE,
    Field,
    PageAction,
    Values,
    add,
    read_text,
)

_REPLICATION = ["--replication", FILE]
_FROM = Field("from", "From", "moment", "where the range starts, exclusive: a commit_ts, or a time in UTC")
_TO = Field("to", "To", "moment", "where the range ends, inclusive")
_ONE = Field("commit_ts", "Or one transaction", "ts", "its commit_ts, instead of a range")
_TABLE = Field("table", "Table", "table", "its name at the target, as db.table", required=True)
_PUMP = Field("pump", "Pump", "name", "its node id", required=True)
_REASON = Field("reason", "Reason", "text", "shown in lists and notices")
_DDL = Field("commit_ts", "commit_ts of the DDL", "ts", "the page of DDL shows it", required=True)
_START = Field("start_ts", "start_ts", "ts", "`binlake txn list` shows it", required=True)


def _check_range(values: Values) -> Mapping[str, str]:
    lo, hi, one = (read_text(values, name) for name in ("from", "to", "commit_ts"))
    if one and (lo or hi):
        return {"commit_ts": "give a range or one transaction, not both"}
    if one:
        return {}
    if not (lo and hi):
        missing = "from" if not lo else "to"
        return {missing: "is needed"}
    return {"to": "must be after From"} if int(lo) >= int(hi) else {}


def _name_range(values: Values) -> list[str]:
    return [
        *add("--from", values["from"]),
        *add("--to", values["to"]),
        *add("--commit-ts", values.get("commit_ts", "")),
    ]


def _take(*names: str, **more: Any) -> Any:
    """Params that are the fields of the same names, and `more`."""
    return lambda values: {**{name: values[name] for name in names}, **more}


def _check_outcome(values: Values) -> Mapping[str, str]:
    committed, stated = values["outcome"] == "committed", bool(values["commit_ts"])
    if committed and not stated:
        return {"commit_ts": "is needed for a transaction that committed"}
    return {"commit_ts": "only a transaction that committed has one"} if stated and not committed else {}


WINDOWS = (
    PageAction(
        "pause", "Pause", "No new window starts. A running task ends, its run then waits.", PAUSE,
        lambda _: ["airflow", "dags", "pause", DAG],
    ),
    PageAction(
        "resume", "Resume", "The DAG of the windows runs again, by its schedule.", UNPAUSE,
        lambda _: ["airflow", "dags", "unpause", DAG],
    ),
    PageAction(
        "run", "Run now", "Starts a run of the windows at once, besides the schedule. Runs never overlap: it waits for "
        "the one that is active.", "", lambda _: ["airflow", "dags", "trigger", DAG],
    ),
    PageAction(
        "registry-pause", "Pause for every scheduler", "Writes into PD's registry that no window of this replication "
        "starts, whoever runs it: Airflow, cron or a person. The pumps keep what has not landed.", ACT,
        lambda _: ["binlake", "pause-drainer", "--node-id", f"binlake-{DAG}", *PUMP_FLAGS],
    ),
    PageAction(
        "registry-resume", "Resume for every scheduler", "Takes back Pause for every scheduler, or offline.", ACT,
        lambda _: ["binlake", "resume-drainer", "--node-id", f"binlake-{DAG}", *PUMP_FLAGS],
    ),
    PageAction(
        "recover", "Recover", "Finishes the interrupted window without the source. Writes only when PD does not answer "
        "and the target is not consistent.", "recover", lambda _: ["binlake", "recover", *_REPLICATION], target=True,
    ),
    PageAction(
        "maintain", "Maintain the lake", "Joins small files and deletes what is no longer needed; windows go on.",
        "maintain", lambda _: ["binlake", "maintain", *_REPLICATION],
    ),
    PageAction(
        "load", "Load again", "Reads all rows of the source, or follows the feeder's load, until they have arrived. "
        "A load that was interrupted is resumed.", "bootstrap",
        lambda v: ["binlake", "bootstrap", *add("--until", v["until"]), *add("--at", v["at"]), *_REPLICATION],
        (Field("until", "Until", "choice", "loaded: the pumps have the rows; landed: the lake; applied: the target",
               choices=("landed", "applied", "loaded")),
         Field("at", "As of", "moment", "TiDB source only; the pumps' binlogs must reach back to it")),
        _take("until", "at"),
    ),
)  # fmt: skip
ROWS = (
    PageAction(
        "verify", "Verify", "Compares the target with the lake or the source, at its checkpoint; nothing is written.",
        "verify",
        lambda v: ["binlake", "verify", *add("--table", v["tables"]), "--against", read_text(v, "against"),
                   *add("--sample", v["sample"]), *_REPLICATION],
        (Field("tables", "Tables", "lines", "as db.table, one per line; empty = all"),
         Field("against", "Against", "choice", choices=("lake", "source")),
         Field("sample", "Share of the rows", "choice", "the next run takes other rows", choices=("1", "0.1", "0.01"))),
        lambda v: {"tables": v["tables"] or None, "against": v["against"], "sample": float(str(v["sample"]))},
        target=True,
    ),
    PageAction(
        "repair", "Verify and repair", "Compares as Verify does, and removes the differences under the target's lease.",
        "verify",
        lambda v: ["binlake", "verify", *add("--table", v["tables"]), "--against", read_text(v, "against"), "--fix",
                   *_REPLICATION],
        (Field("tables", "Tables", "lines", "as db.table, one per line", required=True),
         Field("against", "Against", "choice", choices=("lake", "source"))),
        _take("tables", "against", sample=1, fix=True), target=True,
    ),
    PageAction(
        "repair-range", "Repair a range", "Sets every key that changed in the range to its state at the checkpoint.",
        "backfill", lambda v: ["binlake", "backfill", "repair", *_name_range(v), *_REPLICATION],
        (_FROM, _TO, _ONE), _take("from", "to", "commit_ts", mode="repair"), _check_range, target=True,
    ),
    PageAction(
        "rebuild", "Rebuild a range", "Derives the range's windows again and compares; the target is not written.",
        "backfill",
        lambda v: ["binlake", "backfill", "rebuild", *_name_range(v), *add("--through", v["through"]), *_REPLICATION],
        (_FROM, _TO, Field("through", "Through", "choice", "the last stage", choices=("merge", "convert"))),
        _take("from", "to", "through", mode="rebuild"), _check_range,
    ),
    PageAction(
        "replay", "Replay a range elsewhere", "Applies the range to the target of another replication.", "backfill",
        lambda v: ["binlake", "backfill", "replay", *_name_range(v), "--into", f"{v['into']}.toml", *_REPLICATION],
        (_FROM, _TO, Field("into", "Into", "name", "the replication to whose target it is applied", required=True)),
        _take("from", "to", "into", mode="replay"), _check_range,
    ),
    PageAction(
        "rollback", "Undo a range", "Undoes the range by new changes. Refused if later changes touched the same keys, "
        "unless they may be overwritten.", "backfill",
        lambda v: ["binlake", "backfill", "rollback", *_name_range(v), "--write-to", read_text(v, "write_to"),
                   *add("--force", v["force"]), *_REPLICATION],
        (_FROM, _TO, _ONE, Field("write_to", "Write to", "choice", choices=("target", "source")),
         Field("force", "Overwrite later changes of the same keys", "flag")),
        _take("from", "to", "commit_ts", "write_to", "force", mode="rollback"), _check_range, grave=True,
    ),
    PageAction(
        "emit", "Send a range to a feed again", "Encodes and sends the range as the feed does; its position stays.",
        "backfill",
        lambda v: ["binlake", "backfill", "emit", *add("--feed", v["feed"]), *add("--topic", v["topic"]),
                   *_name_range(v), *_REPLICATION],
        (Field("feed", "Feed", "name", required=True), _FROM, _TO,
         Field("topic", "Topic", "text", "in place of the feed's, with {schema} and {table}")),
        _take("feed", "from", "to", "topic", mode="emit"), _check_range, feeds=True,
    ),
)  # fmt: skip
TABLES = (
    PageAction(
        "table-aside", "Set a table aside", "Its changes are no longer applied, also those of the open window; the "
        "others go on. The checkpoint is not consistent until it is back.", ACT,
        lambda v: ["binlake", "table", "aside", *add("--table", v["table"]), *add("--reason", v["reason"]),
                   *_REPLICATION],
        (_TABLE, _REASON), target=True,
    ),
    PageAction(
        "table-back", "Bring a table back", "Compares and repairs the table, then applies its changes again.", ACT,
        lambda v: ["binlake", "table", "back", *add("--table", v["table"]), *add("--recreate", v["recreate"]),
                   *add("--rows-are-there", v["rows_are_there"]), "--wait", "30", *_REPLICATION],
        (_TABLE, Field("recreate", "Create it from the lake if the target lacks it", "flag"),
         Field("rows_are_there", "Rows without later changes are right", "flag",
               "needed for a table that the lake knows only in part")),
        check=lambda v: {"rows_are_there": "a table that is created again has no rows"}
        if v["recreate"] and v["rows_are_there"] else {}, target=True,
    ),
)  # fmt: skip
DDL = (
    PageAction(
        "ddl-release", "Release a DDL", "Closes the window that is blocked by this DDL, so that it can be replaced or "
        "left out. Refused unless the target proves that the DDL had no effect.", ACT,
        lambda v: ["binlake", "ddl", "release", *add("--commit-ts", v["commit_ts"]), *_REPLICATION], (_DDL,),
        target=True,
    ),
    PageAction(
        "ddl-replace", "Replace a DDL", "The target runs your statement in its place. A window that the DDL blocks is "
        "released, the DDL's window is merged again, and the next run goes on from there.", ACT,
        lambda v: ["binlake", "ddl", "replace", *add("--commit-ts", v["commit_ts"]), *add("--sql", v["sql"]),
                   *add("--reason", v["reason"]), *_REPLICATION],
        (_DDL, Field("sql", "Statement", "sql", "one DDL statement in the target's dialect", required=True), _REASON),
        target=True,
    ),
    PageAction(
        "ddl-skip", "Leave a DDL out", "The target does not run it: its tables then differ from the source's, unless "
        "you change them by hand. Windows are released and merged again as by Replace a DDL.", ACT,
        lambda v: ["binlake", "ddl", "skip", *add("--commit-ts", v["commit_ts"]), *add("--reason", v["reason"]),
                   *_REPLICATION],
        (_DDL, _REASON), target=True,
    ),
    PageAction(
        "lock-resolve", "Continue without shards", "Goes on without the tables that lack a DDL of the others.", ACT,
        lambda v: ["binlake", "ddl", "lock", "resolve", *add("--table", v["table"]), *add("--without", v["without"]),
                   *_REPLICATION],
        (_TABLE, Field("without", "Without", "lines", "tables of the source, one per line; empty = all that lack it")),
        target=True, grave=True,
    ),
)  # fmt: skip
PUMPS = (
    PageAction(
        "pump-pause", "Pause a pump", "The pump's process ends in order. Its data is still needed: windows wait until "
        "it is started again where it ran.", ACT,
        lambda v: ["binlake", "pause-pump", *add("--node-id", v["pump"]), *PUMP_FLAGS], (_PUMP,),
    ),
    PageAction(
        "pump-offline", "Take a pump offline", "For good: it accepts no more prewrites, waits until everything it "
        "holds has landed, and goes.", ACT,
        lambda v: ["binlake", "offline-pump", *add("--node-id", v["pump"]), *PUMP_FLAGS], (_PUMP,), grave=True,
    ),
    PageAction(
        "txn-resolve", "Decide a prewrite", "States the outcome of a transaction that no source can report: windows "
        "then go past it. A wrong outcome loses or invents its rows.", ACT,
        lambda v: ["binlake", "txn", "resolve", read_text(v, "start_ts"),
                   *(["--rolled-back"] if v["outcome"] == "rolled back" else add("--commit-ts", v["commit_ts"])),
                   *add("--pump", v["pump"]), *PUMP_FLAGS],
        (_PUMP, _START, Field("outcome", "Outcome", "choice", choices=("rolled back", "committed")),
         Field("commit_ts", "commit_ts", "ts", "of a transaction that committed")),
        check=_check_outcome, grave=True,
    ),
    PageAction(
        "txn-give-up", "Skip a commit without prewrite", "The rows of this transaction are lost in this pump: pulls "
        "skip it.", ACT,
        lambda v: ["binlake", "txn", "give-up", read_text(v, "start_ts"), *add("--commit-ts", v["commit_ts"]),
                   "--accept-loss", *add("--pump", v["pump"]), *PUMP_FLAGS],
        (_PUMP, _START, Field("commit_ts", "commit_ts", "ts", required=True)), grave=True,
    ),
)  # fmt: skip
FEEDS = (
    PageAction(
        "feed-pause", "Pause a feed", "The feed sends nothing until it is resumed; all else goes on.", PAUSE_FEED,
        lambda v: ["binlake", "changefeed", "pause", "-c", read_text(v, "feed"), *_REPLICATION],
        (Field("feed", "Feed", "name", required=True),), feeds=True,
    ),
    PageAction(
        "feed-resume", "Resume a feed", "The next window sends everything that was missed.", RESUME_FEED,
        lambda v: ["binlake", "changefeed", "resume", "-c", read_text(v, "feed"), *_REPLICATION],
        (Field("feed", "Feed", "name", required=True),), feeds=True,
    ),
)  # fmt: skip
GROUPS: Mapping[str, tuple[PageAction, ...]] = MappingProxyType(
    {"Windows": WINDOWS, "Rows": ROWS, "Tables": TABLES, "DDL": DDL, "Pumps": PUMPS, "Feeds": FEEDS}
)
"""The actions in the order of the page."""
ACTIONS: Mapping[str, PageAction] = MappingProxyType({one.name: one for group in GROUPS.values() for one in group})
"""All actions by name."""
