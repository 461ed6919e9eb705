"""The operators of the side DAGs: one for each command that a DAG runs, with its arguments and what it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from binlake.config import Replication, load_replication
from binlake.config.load import find_replications
from binlake.errors import ConfigError, Permanent, SourceUnavailable
from binlake_airflow.jobs import format_audit_markdown, parse_moment, shorten_lists, summarize_values
from binlake_airflow.operators.command import CommandOperator, Context
from binlake_airflow.telemetry.metrics import compute_lag_s
from binlake_airflow.telemetry.notes import NOTE_KEY
from binlake_airflow.telemetry.reports import format_ts_with_time
from binlake_airflow.timetable import compute_range_of_times

DIFFERENT = 4
"""Exit status if the comparison found differences."""
_SHORT_WAIT = ["--wait", "1"]
# A window being applied is soon done; for longer work the task waits without a worker, or is retried.
_CONSISTENT_S = "30"
_OF_ONE = ("repair", "rollback")
"""Modes of backfill that accept a single transaction in place of a range."""
RECOVERED = "recovered"
"""State of recover if it finished a window; in its other states it wrote nothing."""


class RecoverOperator(CommandOperator):
    """Finishes an interrupted window, from the lake or from relay files; writes nothing if there is none.

    `beside_window`: the task is part of a run of the sync DAG whose source did not answer.
    """

    command = "recover"
    applies = True

    def __init__(self, *, beside_window: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.beside_window = beside_window

    def build_arguments(self, context: Context) -> Sequence[str]:
        """Only the run id: the command itself checks whether PD answers and the target is consistent (S3-10)."""
        return ["--run-id", str(context["run_id"])]

    def answer(self, printed: Any, status: int, context: Context) -> Any:
        """Note the outcome; fail the run if the source has been unreachable for too long (hazards R-35)."""
        last = super().answer(printed, status, context)[-1]
        text = f"recover: {last['state']} at {format_ts_with_time(last['hi'])}: {last['detail'].get('reason', '')}"
        context["ti"].xcom_push(key=NOTE_KEY, value=text[:1000])
        if self.beside_window and last["state"] != RECOVERED:
            self._require_short_outage()
        return last

    def _require_short_outage(self) -> None:
        # Imported late: delta-rs is not needed for DAG parsing.
        from binlake.lake.paths import LakePaths
        from binlake.lake.windowlog import WindowLog

        settings = self.read_settings()
        landed, limit = WindowLog(LakePaths.of(settings)).find_landed_ts(), settings.window.blocked_alert_s
        if landed is not None and compute_lag_s(str(landed)) > limit:
            raise SourceUnavailable(
                f"PD does not answer, and the last landed window ended {compute_lag_s(str(landed)):.0f} s ago",
                where={"landed_ts": landed, "limit_s": limit},
                hint="see the runbook: the source is gone; the target is complete up to its checkpoint",
            )


class BootstrapOperator(CommandOperator):
    """Loads a TiDB source, or follows the full load of a feeder's sources; the task's log shows the progress.

    If a run is cleared, the load continues where it stopped.
    """

    command = "bootstrap"

    def uses_spark(self, context: Context) -> bool:
        """True for a load by SQL: its windows go through all stages, and some need Spark."""
        del context
        return self.read_settings().source.sql is not None

    def build_arguments(self, context: Context) -> Sequence[str]:
        """The phase to wait for, and the commit_ts of the load."""
        at = parse_moment(context["params"].get("at"))
        return ["--until", context["params"]["until"], "--run-id", context["run_id"], *(["--at", at] if at else [])]

    def answer(self, printed: Any, status: int, context: Context) -> Any:
        """The loads, with a note."""
        done = super().answer(printed, status, context)
        rows, sources = sum(load["rows"] for load in done["loads"]), len(done["loads"])
        last = max(done["loads"], key=lambda load: int(load["commit_ts"]))["commit_ts"]
        text = f"bootstrap: {rows:,} rows of {sources} sources {done['phase']}, base at {format_ts_with_time(last)}"
        context["ti"].xcom_push(key=NOTE_KEY, value=text)
        return done


class RestoreOperator(CommandOperator):
    """Brings a database to a commit_ts, from a dump or its present rows, with the lake. A rerun continues."""

    command = "restore"
    applies = True

    def uses_spark(self, context: Context) -> bool:
        """True: the stages of the SQL sink run for each window."""
        del context
        return True

    def build_arguments(self, context: Context) -> Sequence[str]:
        """Base, end and target from the params."""
        params = context["params"]
        values = {"--base": params.get("base"), "--base-ts": params.get("base_ts"), "--files": params.get("files")}
        values["--to"] = parse_moment(params.get("to"))
        if into := params.get("into"):
            values["--into"] = _find_replication_file(into)
        words = [word for name, value in values.items() if value for word in (name, value)]
        return [*words, "--run-id", str(context["run_id"])]

    def find_other_target(self, asked: Context) -> Replication | None:
        """The replication named in the form, if any."""
        name = asked.get("into")
        return load_replication(_find_replication_file(name), secrets=False) if name else None

    def answer(self, printed: Any, status: int, context: Context) -> Any:
        """The results, with a note: the database's position, and the tables whose rows are only partly known."""
        last = printed[-1]
        inexact = last["detail"].get("inexact", {})
        text = f"restore: the database is at {format_ts_with_time(last['hi'])}"
        text += f"; known in part: {', '.join(sorted(inexact))}" if inexact else ""
        context["ti"].xcom_push(key=NOTE_KEY, value=text[:1000])
        return shorten_lists(super().answer(printed, status, context))


class BackfillOperator(CommandOperator):
    """Rebuilds, repairs, replays, rolls back or resends a range of commit_ts (DESIGN 4).

    The run id names its progress in the lake: if a run is cleared, it resumes where it stopped.
    """

    command = "backfill"
    applies = True
    locks = ("backfill",)

    def uses_spark(self, context: Context) -> bool:
        """True for rebuild, replay and emit, which run stages; the other modes read the lake and write SQL."""
        return context["params"]["mode"] in ("rebuild", "replay", "emit")

    def build_arguments(self, context: Context) -> Sequence[str]:
        """The mode, and the range: from the params, or from the data interval of a run of Airflow's backfill."""
        params, mode = context["params"], context["params"]["mode"]
        lo, hi = parse_moment(params.get("from")), parse_moment(params.get("to"))
        if one := params.get("commit_ts"):
            _require_one_range(mode, lo, hi)
            lo, hi = str(int(one) - 1), str(int(one))
        elif lo is None and hi is None:
            lo, hi = _compute_range_of_interval(context)
        if lo is None or hi is None:
            raise ConfigError("a backfill needs `from` and `to`", hint="commit_ts as text, or times (ISO 8601, UTC)")
        context["ti"].xcom_push(key="range", value=f"{lo}-{hi}")
        more: Mapping[str, Callable[[], list[str]]] = {
            "rebuild": lambda: ["--through", params["through"]],
            "repair": lambda: _SHORT_WAIT,
            "replay": lambda: ["--into", _find_replication_file(_require_param(params, "into"))],
            "rollback": lambda: [
                "--write-to",
                params["write_to"],
                *_SHORT_WAIT,
                *_format_option("--force", params["force"]),
            ],
            "emit": lambda: [
                "--feed",
                _require_param(params, "feed"),
                *(["--topic", params["topic"]] if params.get("topic") else []),
            ],
        }
        return [mode, "--from", lo, "--to", hi, "--run-id", context["run_id"], *more[mode]()]

    def find_other_target(self, asked: Context) -> Replication | None:
        """For a replay: the replication named in the form."""
        replayed = asked["mode"] == "replay"
        return (
            load_replication(_find_replication_file(_require_param(asked, "into")), secrets=False) if replayed else None
        )

    def answer(self, printed: Any, status: int, context: Context) -> Any:
        """The results, with a note; the run fails if a rebuild gave a result that differs from before."""
        last = printed[-1]
        lo, hi = format_ts_with_time(last["lo"]), format_ts_with_time(last["hi"])
        text = f"{context['params']['mode']} ({lo}, {hi}]: {last['state']}"
        context["ti"].xcom_push(
            key=NOTE_KEY, value=f"{text}, {last['rows']:,} rows {summarize_values(last['detail'])}"[:1000]
        )
        if status != DIFFERENT:
            return shorten_lists(super().answer(printed, status, context))
        context["ti"].xcom_push(key="return_value", value=shorten_lists(printed))
        raise Permanent(
            "rows derived again differ from the existing rows",
            where={"replication": self.replication, "range": f"{last['lo']}-{last['hi']}"},
            hint="see the windows in the XCom `return_value`; the configuration or the version may have changed since",
        )


class VerifyOperator(CommandOperator):
    """Compares the target with the lake or the source, at its checkpoint; a difference fails the run."""

    command = "verify"
    applies = True

    def build_arguments(self, context: Context) -> Sequence[str]:
        """What to compare with, how much of it, and whether to repair."""
        params = context["params"]
        tables = [word for table in params.get("tables") or () for word in ("--table", table)]
        more = ["--wait", _CONSISTENT_S, *tables, *_format_option("--fix", params.get("fix"))]
        return ["--against", params["against"], "--sample", str(params["sample"]), "--run-id", context["run_id"], *more]

    def answer(self, printed: Any, status: int, context: Context) -> Any:
        """The results; they are stored before a difference fails the task."""
        first = printed[0]
        wrong = first["detail"]
        repaired = ", repaired" if first["state"] == "different" and status == 0 else ""
        text = (
            f"verify: {first['state']}{repaired} at {format_ts_with_time(first['hi'])}, {first['rows']:,} rows compared"
        )
        context["ti"].xcom_push(key=NOTE_KEY, value=text)
        if status != DIFFERENT:
            return shorten_lists(super().answer(printed, status, context))
        context["ti"].xcom_push(key="return_value", value=shorten_lists(printed))
        raise Permanent(
            f"the target differs: {wrong['missing']} rows missing, {wrong['extra']} only at the target, "
            f"{wrong['different']} different",
            where={"replication": self.replication, "commit_ts": first["hi"]},
            hint="trigger verify with `fix`, or backfill with mode `repair`",
        )


class MaintainOperator(CommandOperator):
    """Maintains the lake; `locks` are those under which its tables are written."""

    command = "maintain"

    def __init__(self, *, locks: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.locks = tuple(locks)

    def uses_spark(self, context: Context) -> bool:
        """True: it joins files with Spark."""
        del context
        return True

    def build_arguments(self, context: Context) -> Sequence[str]:
        """No arguments."""
        del context
        return ()

    def answer(self, printed: Any, status: int, context: Context) -> Any:
        """The tables, with a note."""
        # Without the names of mirrors, of which there may be thousands.
        tables = [{key: value for key, value in table.items() if key != "mirrors"} for table in printed or []]
        joined, dropped = (sum(table[key] for table in tables) for key in ("joined", "dropped"))
        context["ti"].xcom_push(key=NOTE_KEY, value=f"maintain: {joined:,} files joined, {dropped:,} dropped")
        return super().answer(tables, status, context)


class AuditOperator(CommandOperator):
    """Queries the lake about the past; the answer is stored as JSON, and as Markdown for people."""

    command = "audit"
    # A query without an answer is not a failure of the replication.
    records_failures = False

    def build_arguments(self, context: Context) -> Sequence[str]:
        """The query from the params. Raises ConfigError if it is incomplete."""
        params = context["params"]
        what, at = params["what"], parse_moment(params.get("at"))
        if what == "transaction":
            return ["transaction", _require_param(params, "commit_ts")]
        table = _require_param(params, "table")
        if what == "table":
            if at is None:
                raise ConfigError("`at` is missing for an audit of a table", hint="fill in `at`: a commit_ts or a time")
            return ["table", table, "--at", at]
        return ["row", table, json.dumps(list(_require_param(params, "key"))), *(["--at", at] if at else [])]

    def answer(self, printed: Any, status: int, context: Context) -> Any:
        """The answer, shortened if it is long; `markdown` for people."""
        shortened = shorten_lists(super().answer(printed, status, context))
        text = format_audit_markdown(context["params"], shortened, found=status == 0)
        context["ti"].xcom_push(key="markdown", value=text)
        context["ti"].xcom_push(key=NOTE_KEY, value=text.splitlines()[0].strip("# ")[:1000])
        self.log.info("%s", text)
        return shortened


def _format_option(word: str, value: Any) -> list[str]:
    return [word] if value else []


def _find_replication_file(name: str) -> str:
    """The file of another replication: a form can name only a configured replication, never a path."""
    file = next((path for path, replication in find_replications().good.items() if replication.name == name), None)
    if file is None:
        raise ConfigError(
            f"there is no replication named {name!r}", hint="describe the target in its own replication file"
        )
    return str(file.resolve())


def _require_one_range(mode: str, lo: str | None, hi: str | None) -> None:
    """Check that the range is set only once: by `from` and `to`, or by `commit_ts`. Raises ConfigError."""
    if lo is not None or hi is not None:
        raise ConfigError("the range is set twice", hint="fill in `from` and `to`, or only `commit_ts`")
    if mode not in _OF_ONE:
        raise ConfigError(
            f"{mode} takes no `commit_ts`: only {' and '.join(_OF_ONE)} do", hint="fill in `from` and `to`"
        )


def _compute_range_of_interval(context: Context) -> tuple[str | None, str | None]:
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None or start >= end:
        return None, None
    lo, hi = compute_range_of_times(start, end)
    return str(lo), str(hi)


def _require_param(params: Mapping[str, Any], name: str) -> Any:
    if not params.get(name):
        raise ConfigError(f"`{name}` is missing for this query", hint="fill it in when you trigger the run")
    return params[name]
