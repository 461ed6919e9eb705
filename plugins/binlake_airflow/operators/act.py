"""The operator of `<name>.act`: one action of the pages, as the command that the page showed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from binlake.config import Replication
from binlake.errors import ConfigError
from binlake_airflow.actions.action import ACT, DAG, FILE, PUMP_FLAGS, PageAction
from binlake_airflow.actions.fields import InvalidFields, Values
from binlake_airflow.actions.table import ACTIONS
from binlake_airflow.operators.command import CommandOperator, Context
from binlake_airflow.telemetry.notes import KEY

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
        context["ti"].xcom_push(key=KEY, value=f"{name}{f': {said}' if said else ''}"[:_LONGEST])
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
