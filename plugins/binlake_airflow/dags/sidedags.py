"""The other DAGs of a replication, with one task each: bootstrap, backfill, restore, recover and more."""

from __future__ import annotations

from collections.abc import Callable

from airflow.sdk import DAG, Param

from binlake.errors import ConfigError
from binlake.pipeline import list_locks
from binlake_airflow.actions import ACT
from binlake_airflow.actiontable import ACTIONS
from binlake_airflow.dags.dagparts import (
    TS_PATTERN,
    ReplicationFile,
    build_empty_dag,
    build_moment_param,
    build_text_param,
    parse_schedule,
)
from binlake_airflow.operators.command import ActOperator
from binlake_airflow.operators.commands import (
    AuditOperator,
    BackfillOperator,
    BootstrapOperator,
    MaintainOperator,
    RecoverOperator,
    RestoreOperator,
    VerifyOperator,
)
from binlake_airflow.timetable import BackfillIntervals

MODES = {
    "rebuild": "derive its windows again and compare; the target is not written",
    "repair": "set every key that the range changed to its state at the checkpoint",
    "replay": "apply the range to another target",
    "rollback": "undo the range with new changes; refused if later changes touched the same keys, unless forced",
    "emit": "encode and send it again as a feed does, to its topics or others; the feed's position does not change",
}
# Must have a dot, and must not look like an option of the command.
_TABLE = r"^[^-.\s][^\n]*\.[^\n]+$"
_FEED = r"^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$"
_TOPIC = r"^[A-Za-z0-9._{}][A-Za-z0-9._{}-]*$"
_BASE = r"^(/[^\n]*|[0-9]{1,20})$"
_FILES = r"^(/|[a-z0-9]+://)[^\n]*$"
_NAME = r"^[a-z][a-z0-9_-]{0,62}$"


def build_side_dags(file: ReplicationFile) -> list[DAG]:
    """All side DAGs; those that write to the target only if there is one. Raises ConfigError."""
    makers: list[Callable[[ReplicationFile], DAG]] = [
        _build_bootstrap_dag, _build_backfill_dag, _build_restore_dag, _build_audit_dag, _build_maintain_dag,
        _build_act_dag,
    ]  # fmt: skip
    if file.replication.target is not None:
        makers += [_build_recover_dag, _build_verify_dag]
    return [make(file) for make in makers]


def _build_bootstrap_dag(file: ReplicationFile) -> DAG:
    reached = ["loaded", "landed", *["applied"] * (file.replication.target is not None)]
    with build_empty_dag(
        file,
        "bootstrap",
        summary=f"Full load of the sources of {file.replication.name}, until its sinks have the rows",
        doc="A TiDB source is read by SQL as of one commit_ts, and its rows become the first windows; "
        f"`{file.replication.name}` waits until they are sealed. The feeder loads MySQL and MariaDB sources itself at "
        f"its first start: this DAG then follows its progress, and `{file.replication.name}`, which must be unpaused, "
        "replicates the rows. The task's log shows the rows and tables read so far. A second run resumes the load.",
        params={
            "until": Param(
                reached[-1], type="string", enum=reached, title="until",
                description="loaded: the pumps have the rows; landed: the lake has them; applied: the target has them",
            ),
            "at": build_moment_param(
                "at", "TiDB source: load as of this time; the pumps' binlogs must reach back to it"
            ),
        },
        schedule=None,
    ) as dag:  # fmt: skip
        BootstrapOperator(task_id="bootstrap", **file.build_command_arguments(), doc_md="`binlake bootstrap`")
    return dag


def _build_backfill_dag(file: ReplicationFile) -> DAG:
    rows = "\n".join(f"| `{mode}` | {text} |" for mode, text in MODES.items())
    with build_empty_dag(
        file,
        "backfill",
        summary=f"Process a past range of commit_ts of {file.replication.name}: {', '.join(MODES)}",
        doc=f"The range is (from, to]. It is read from the lake, never from the pumps.\n\n| Mode | |\n|---|---|\n{rows}"
        "\n\nAirflow's backfill of dates runs this DAG once for each interval [a, b), by commit time. "
        "It never runs by itself. To stop a run, mark it failed; to continue it, clear it.",
        params={
            "mode": Param("repair", type="string", enum=list(MODES), title="mode", description="what to do"),
            "from": build_moment_param("from", "Where the range starts, exclusive"),
            "to": build_moment_param("to", "Where the range ends, inclusive"),
            "commit_ts": build_text_param(
                "commit_ts", "repair, rollback: one transaction, instead of a range", TS_PATTERN
            ),
            "through": Param(
                "merge",
                type="string",
                enum=["merge", "convert"],
                title="through",
                description="rebuild: the last stage",
            ),
            "into": build_text_param("into", "replay: the replication to whose target the range is applied", _NAME),
            "write_to": Param(
                "target",
                type="string",
                enum=["target", "source"],
                title="write_to",
                description="rollback: where the changes that undo the range are written",
            ),
            "force": Param(
                False, type="boolean", title="force", description="rollback: overwrite later changes of the same keys"
            ),
            "feed": build_text_param("feed", "emit: the feed", _FEED),
            "topic": build_text_param(
                "topic", "emit: topics in place of the feed's, with {schema} and {table}", _TOPIC
            ),
        },
        schedule=_build_backfill_intervals(file),
    ) as dag:
        BackfillOperator(task_id="backfill", **file.build_command_arguments(), doc_md="`binlake backfill`")
    return dag


def _build_restore_dag(file: ReplicationFile) -> DAG:
    with build_empty_dag(
        file,
        "restore",
        summary=f"Bring a database to any landed commit_ts of {file.replication.name}, from a dump and the lake",
        doc="Neither source nor pumps are needed. The database is the replication's own target, or that of `into`: an "
        "empty one with `base`, or one whose checkpoint is before `to`. If a run was stopped, it continues when it is "
        "triggered again with the same parameters.",
        params={
            "to": build_moment_param("to", "Restore up to here, inclusive; empty = all that has landed"),
            "base": build_text_param(
                "base", "folder of a dump (mydumper, dumpling) on the worker, loaded first; or the commit_ts at which"
                " the database equals the source", _BASE,
            ),
            "base_ts": build_text_param(
                "base_ts", "the dump's commit_ts, if its metadata does not contain it", TS_PATTERN
            ),
            "files": build_text_param("files", "binlog files instead of the lake: a folder or a URI", _FILES),
            "into": build_text_param("into", "the replication whose target is restored; empty = this one", _NAME),
        },
        schedule=None,
    ) as dag:  # fmt: skip
        RestoreOperator(task_id="restore", **file.build_command_arguments(), doc_md="`binlake restore`")
    return dag


def _build_recover_dag(file: ReplicationFile) -> DAG:
    with build_empty_dag(
        file,
        "recover",
        summary=f"Finish the interrupted window of {file.replication.name} without the source",
        doc="Writes only when PD does not answer and the target is not consistent; the schedule of "
        f"`{file.replication.name}` does the same automatically.",
        params={},
        schedule=None,
    ) as dag:
        RecoverOperator(task_id="recover", **file.build_command_arguments(), doc_md="`binlake recover`")
    return dag


def _build_audit_dag(file: ReplicationFile) -> DAG:
    with build_empty_dag(
        file,
        "audit",
        summary=f"Show a row, a table or a transaction of {file.replication.name} as of a commit_ts or time",
        doc="The answer is in the task's XComs `return_value` (JSON) and `markdown`.",
        params={
            "what": Param("row", type="string", enum=["row", "table", "transaction"], title="what"),
            "table": build_text_param("table", "row, table: as db.table", _TABLE),
            "key": Param(
                None, type=["null", "array"], items={"type": "string"}, title="key",
                description="row: the key's values in order, one per line",
            ),
            "at": build_moment_param("at", "table: as of this time; row: only the last change up to it"),
            "commit_ts": build_text_param("commit_ts", "transaction: its commit_ts or start_ts", TS_PATTERN),
        },
        schedule=None,
    ) as dag:  # fmt: skip
        AuditOperator(task_id="audit", **file.build_command_arguments(), doc_md="`binlake audit`")
    return dag


def _build_verify_dag(file: ReplicationFile) -> DAG:
    rule = file.replication.airflow.verify
    with build_empty_dag(
        file,
        "verify",
        summary=f"Compare the target of {file.replication.name} with the lake or the source",
        doc="Compares at the target's checkpoint; a difference fails the run, unless `fix` removed it.",
        params={
            "against": Param(rule.against, type="string", enum=["lake", "source"], title="against"),
            "sample": Param(
                rule.sample, type="number", exclusiveMinimum=0, maximum=1, title="sample",
                description="share of the rows to compare; the next run takes another share",
            ),
            "tables": Param(
                None, type=["null", "array"], items={"type": "string", "pattern": _TABLE}, title="tables",
                description="compare only these tables, as db.table, one per line; empty = all",
            ),
            "fix": Param(
                False, type="boolean", title="fix", description="remove the differences now, under the target's lease"
            ),
        },
        schedule=parse_schedule(rule.schedule, "airflow.verify.schedule"),
    ) as dag:  # fmt: skip
        VerifyOperator(task_id="verify", **file.build_command_arguments(), doc_md="`binlake verify`")
    return dag


def _build_maintain_dag(file: ReplicationFile) -> DAG:
    with build_empty_dag(
        file,
        "maintain",
        summary=f"Maintain the lake of {file.replication.name}: join small files, delete what is no longer needed",
        doc="Safe while windows run: tables are locked one at a time. History is not removed.",
        params={},
        schedule=parse_schedule(file.replication.airflow.maintain.schedule, "airflow.maintain.schedule"),
    ) as dag:
        locks = list_locks(file.replication.list_stages())
        MaintainOperator(task_id="maintain", locks=locks, **file.build_command_arguments(), doc_md="`binlake maintain`")
    return dag


def _build_act_dag(file: ReplicationFile) -> DAG:
    actions = [one.name for one in ACTIONS.values() if one.way == ACT and one.fits(file.replication)]
    with build_empty_dag(
        file,
        ACT,
        summary=f"What the pages do to {file.replication.name} by a command: {', '.join(actions)}",
        doc="Binlake's page of the replication fills in the form and shows the command that does the same. To run an "
        "action again, clear its run.",
        params={
            "action": Param(actions[0], type="string", enum=actions, title="action"),
            "fields": Param(
                {}, type="object", additionalProperties={"type": "string"}, title="fields",
                description="the action's fields by name, all as text, as the page names them",
            ),
        },
        schedule=None,
    ) as dag:  # fmt: skip
        ActOperator(task_id=ACT, **file.build_command_arguments(), doc_md="one command of `binlake`")
    return dag


def _build_backfill_intervals(file: ReplicationFile) -> BackfillIntervals:
    text = file.replication.airflow.backfill.interval
    try:
        table = BackfillIntervals(text, timezone="UTC")
        table.validate()
    except Exception as error:
        # The errors of croniter and of Airflow, reported in the same way.
        raise ConfigError(
            f"`airflow.backfill.interval` is not understood: {text!r}",
            hint="use cron text, or @hourly, @daily, @weekly",
        ) from error
    return table
