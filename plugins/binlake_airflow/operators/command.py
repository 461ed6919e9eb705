"""The operators of one `binlake` command: for the side DAGs, and for an action of the pages, as the page showed it.

They build the arguments, find Spark if it is needed, and return the answer. The command decides and guards (lease,
locks, refusals); while another process blocks it, the task waits without a worker.
"""

from __future__ import annotations

import json
import os
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from binlake.common.installation import format_short_lived_options
from binlake.config import Replication
from binlake.errors import ConfigError, Transient
from binlake_airflow.actions import ACT, DAG, FILE, PUMP_FLAGS, InvalidFields, PageAction, Values
from binlake_airflow.actiontable import ACTIONS
from binlake_airflow.jobs import build_error, needs_spark_after_all, prepare_result_for_xcom
from binlake_airflow.operators import child
from binlake_airflow.operators.base import BinlakeOperator
from binlake_airflow.operators.spark import (
    DRIVER_MEMORY_ENV,
    ConnectSessions,
    build_driver_env,
    find_connect_url,
    find_spark_master,
    split_token,
)
from binlake_airflow.telemetry.notes import NOTE_KEY

Context = Mapping[str, Any]

NOT_FOUND = 3
"""Exit status of a command that found nothing, which is also an answer."""


class CommandOperator(BinlakeOperator):
    """Runs `command` of the replication; `engine` and `spark_conn_id` locate Spark. Returns what it printed."""

    command = ""

    def __init__(self, *, engine: Literal["connect", "submit"], spark_conn_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.engine = engine
        self.spark_conn_id = spark_conn_id
        self._sessions: ConnectSessions | None = None
        self._printed: tuple[Context, Any] | None = None

    def uses_spark(self, context: Context) -> bool:
        """Whether the command is given the address of Spark."""
        del context
        return False

    @abstractmethod
    def build_arguments(self, context: Context) -> Sequence[str]:
        """The command's arguments, except for the replication, Spark, and the output format. Raises ConfigError."""

    def build_words(self, context: Context) -> list[str]:
        """The whole command, except for Spark. Raises ConfigError."""
        of_file = ["--replication", self.replication_file, "--output", "json"]
        return [self.command, *self.build_arguments(context), *of_file]

    def parse_printed(self, text: str) -> Any:
        """What the command printed, as a value; None if it printed nothing."""
        return json.loads(text) if text else None

    def answer(self, printed: Any, status: int, context: Context) -> Any:
        """The XCom value for the command's JSON output `printed` (None: no output) and its exit status."""
        del context
        if status not in (0, NOT_FOUND):
            raise ConfigError(f"`binlake {self.command}` ended with status {status}", hint="see the lines above")
        return printed

    def attempt(self, context: Context, until: float) -> Any:
        """Run the command; if no Connect server listens, without Spark. Raises its error by the error's class."""
        del until
        words = self.build_words(context)
        env: Mapping[str, str] = {}
        unavailable: Transient | None = None
        if self.uses_spark(context):
            try:
                where, env = self._locate_spark(context)
            except Transient as error:
                self.log.warning("spark_unavailable", command=self.command, error=str(error))
                where, unavailable = ["--without-spark"], error
            words += where
        text, status = self.run_command(words, env, unavailable)
        printed = self.parse_printed(text)
        self._printed = dict(context["params"]), printed
        return self.answer(_without_lineage(printed), status, context)

    def run_command(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, unavailable: Transient | None = None
    ) -> tuple[str, int]:
        """What a command prints, and its exit status. Raises its error; `unavailable` if it needs Spark after all."""
        with tempfile.TemporaryDirectory(prefix="binlake-") as folder:
            result = Path(folder) / "result.json"
            how = self.run_child([str(result), *words], env, child.MODULE)
            if unavailable is not None and needs_spark_after_all(result):
                raise unavailable
            return _read_outcome(result, how)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The command's inputs and outputs, also of a failed task; called only by the OpenLineage provider."""
        del task_instance
        if self._printed is None:
            return None
        from binlake_airflow.telemetry import lineage

        asked, printed = self._printed
        return lineage.build_lineage_of_command(
            self.command, self.read_settings(), asked, printed, self.find_other_target(asked)
        )

    def find_other_target(self, asked: Context) -> Replication | None:
        """The replication whose target the command wrote to, if it is another one."""
        del asked
        return None

    def on_kill(self) -> None:
        """End the command, then the work it left on a Connect server."""
        super().on_kill()
        if self._sessions is not None:
            self._sessions.end()

    def _locate_spark(self, context: Context) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment that locate Spark. Raises Transient if no Connect server listens."""
        if self.engine == "submit":
            master = find_spark_master(self.spark_conn_id)
            return ["--master", master], {
                **build_driver_env(master.startswith("local")),
                **_build_driver_arguments(master),
            }
        url, began = find_connect_url(self.spark_conn_id), context["dag_run"].start_date.timestamp()
        self._sessions = ConnectSessions(url, self.replication, self.command, self.log.warning)
        shown, env = split_token(self._sessions.open(context["ti"].try_number, began))
        return ["--remote", shown], env


def _without_lineage(printed: Any) -> Any:
    """An answer without the parts that only lineage needs."""
    if not isinstance(printed, list):
        return printed
    return [
        prepare_result_for_xcom(one) if isinstance(one, dict) and isinstance(one.get("detail"), dict) else one
        for one in printed
    ]


def _build_driver_arguments(master: str) -> dict[str, str]:
    """The environment for PySpark, which starts the driver's JVM itself and reads early settings from a variable."""
    words = ["--driver-java-options", f'"{format_short_lived_options()}"'] if master.startswith("local") else []
    memory = os.environ.get(DRIVER_MEMORY_ENV)
    words += ["--driver-memory", memory] if memory else []
    return {"PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"])}


def _read_outcome(result: Path, how: str) -> tuple[str, int]:
    if not result.exists():
        raise Transient(f"the command ended without a result: {how}", hint="see the lines above")
    outcome = json.loads(result.read_text(encoding="utf-8"))
    if not outcome["ok"]:
        raise build_error(outcome["error"])
    return outcome["printed"].strip(), int(outcome["status"])


_LONGEST = 1000


class ActOperator(CommandOperator):
    """Runs the command of an action; the fields are checked again, as a run can be triggered without the page.

    A pump's token is that of the worker (`BINLAKE_PUMP_TOKEN_FILE`).
    """

    command = ACT
    applies = True
    # An action that fails is not a failure of the replication.
    records_failures = False

    def attempt(self, context: Context, until: float) -> Any:
        """Run the command; after a choice about a DDL also merge again the windows that it names."""
        answer = super().attempt(context, until)
        for window in answer.get("merge", ()) if isinstance(answer, dict) else ():
            lo, _, hi = window.partition("-")
            merge = ["stage", "merge", "--lo", lo, "--hi", hi, "--run-id", context["run_id"], "--without-spark"]
            self.run_command([*merge, "--replication", self.replication_file, "--output", "json"])
        return answer

    def build_arguments(self, context: Context) -> Sequence[str]:
        """All words of the command but the first. Raises ConfigError."""
        return self.build_words(context)[1:]

    def build_words(self, context: Context) -> list[str]:
        """The command, with the file, PD and its certificates in place of what the page shows for them."""
        action, values = _read_action(context, self.read_settings())
        words = action.build_command(values)[1:]
        if FILE in words:
            return [self.replication_file if word == FILE else word for word in words] + ["--output", "json"]
        plain = [word.replace(DAG, self.replication) for word in words if word not in PUMP_FLAGS]
        return [*plain, *_locate_registry(self.read_settings())]

    def parse_printed(self, text: str) -> Any:
        """JSON, or the lines of a command that prints text."""
        return json.loads(text) if text[:1] in ("[", "{") else text.splitlines() or None

    def answer(self, printed: Any, status: int, context: Context) -> Any:
        """The answer, with a note that says what was done."""
        found = super().answer(printed, status, context)
        name, fields = context["params"]["action"], context["params"]["fields"]
        said = ", ".join(f"{key} {value}" for key, value in fields.items())
        context["ti"].xcom_push(key=NOTE_KEY, value=f"{name}{f': {said}' if said else ''}"[:_LONGEST])
        return found

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """None: what an action changes is a state, not a dataset."""
        del task_instance


def _read_action(context: Context, replication: Replication) -> tuple[PageAction, Values]:
    name = context["params"]["action"]
    action = ACTIONS.get(name)
    if action is None or action.way != ACT or not action.fits(replication):
        raise ConfigError(f"{name!r} is no action of this replication", hint="use the replication's page")
    try:
        return action, action.parse(context["params"]["fields"])
    except InvalidFields as error:
        raise ConfigError(f"the action's fields cannot be used: {error}", where={"action": name}) from None


def _locate_registry(replication: Replication) -> list[str]:
    options = ("--ssl-ca", "--ssl-cert", "--ssl-key")
    files = zip(options, replication.source.security.list_files(), strict=True)
    tls = [word for option, file in files if file for word in (option, file)]
    return ["--pd-urls", ",".join(replication.source.pd_urls), *tls]
