"""The interface between an operator and a Spark job: arguments, the result file, errors by name, a task's answer.

A job is started by module name; this room never imports it (DESIGN 1). commit_ts stay decimal strings here. A task
returns a short part of the job's answer, because XCom is for small values, and Markdown for people.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlake import errors, tso
from binlake.errors import BinlakeError, ConfigError, Permanent, Transient, UnknownOutcome
from binlake.pipeline import BY_NAME
from binlake.window.lineage import drop_lineage

MODULE = "binlake.spark_jobs.commands.main"
FUSED = "window"

CHANGED = "changed"
"""In a result's detail: the tables (db, table) that the window changed."""
MOST_TABLES = 200
"""Most tables of one window that are named to Airflow; if a window changed more, none is: XCom is for small values."""

_MORE = "more"
"""In the outcome of a window, or of a stage, after which the job goes on."""
TOLD = "stages"
"""The key of the XCom in which a process of a whole window tells the results of its stages, by their task."""
_STAGE = "stage"
"""Its value in the outcome of a stage; that of a window has True."""
_SPARK_NEEDED = "SparkNeeded"
"""The error class of a job that needs Spark but may not start it."""

_KINDS: dict[str, type[BinlakeError]] = {cls.kind: cls for cls in (Permanent, Transient, UnknownOutcome)}


@dataclass(frozen=True)
class StageJob:
    """One try of one stage, or of all stages (`window`).

    `replication` is the TOML file; `began_s` is when its DAG run began (Unix seconds); `lo`, `hi`, `start_ts` and
    `stop_ts` are commit_ts as decimal strings or None; `feed`: the feed, for a feed's stage. `run_for_s`: continue with
    the next windows so long, each begun at least `run_every_s` after the one before; 0 = one window.
    `tells_stages`: the job of a whole window also writes the outcome of each stage.
    """

    stage: str
    replication: str
    run_id: str
    try_number: int = 1
    began_s: float = 0.0
    lo: str | None = None
    hi: str | None = None
    start_ts: str | None = None
    stop_ts: str | None = None
    feed: str | None = None
    run_for_s: float = 0.0
    run_every_s: float = 0.0
    tells_stages: bool = False

    def build_arguments(
        self, result: Path, remote: str | None = None, *, without_spark: bool = False, spark_later: bool = False
    ) -> list[str]:
        """Arguments of `python -m`, `MODULE` first; the outcome goes to `result`, `remote` is a Connect URL.

        `without_spark`: the job starts no Spark, and reports if it cannot do without (`needs_spark_after_all`).
        `spark_later`: it also reports if its window should run on Spark.
        """
        pairs = {
            "--replication": self.replication,
            "--run-id": self.run_id,
            "--lo": self.lo,
            "--hi": self.hi,
            "--start-ts": self.start_ts,
            "--stop-ts": self.stop_ts,
            "--feed": self.feed,
            "--run-for": f"{self.run_for_s:g}" if self.run_for_s else None,
            "--run-every": f"{self.run_every_s:g}" if self.run_for_s else None,
            "--remote": remote,
            "--result": str(result),
        }
        alone = ["--without-spark"] * without_spark + ["--spark-later"] * spark_later
        alone += ["--tell-stages"] * self.tells_stages
        options = (text for key, value in pairs.items() if value is not None for text in (key, value))
        return [self.stage, *options, *alone]

    @property
    def needs_spark(self) -> bool:
        """Whether the stage opens a Spark session."""
        return self.stage == FUSED or BY_NAME[self.stage].needs_spark


def find_feed_of_result(result: Mapping[str, Any]) -> str:
    """The feed whose stage returned `result`; empty for other stages."""
    return str((result.get("detail") or {}).get("feed", ""))


def parse_moment(text: str | None) -> str | None:
    """A param (a commit_ts, or a time in ISO 8601, UTC) as a decimal commit_ts. Raises ConfigError."""
    if not text:
        return None
    try:
        return str(tso.parse(text))
    except ValueError as error:
        raise ConfigError(f"a param is neither a commit_ts nor a time: {error}", where={"param": text}) from None


def is_idle(landed: Mapping[str, Any], idle_s: int, stops: Collection[int]) -> bool:
    """Whether a landed window needs no sink now: it is empty, and no interval of `idle_s` ends in it.

    A sink processes an empty window together with the next one, which merge prepares; the intervals keep checkpoints
    moving. `stops` are commit_ts that the sinks must reach exactly.
    """
    if landed["state"] != "done" or landed["rows"] or not idle_s or int(landed["hi"]) in stops:
        return False
    first, last = (tso.extract_physical(int(landed[side])) // (idle_s * 1000) for side in ("lo", "hi"))
    return first == last


class EndedStages:
    """The windows, or with `stages` the stages, that a job has written to the file `result` while it goes on."""

    def __init__(self, result: Path, *, stages: bool = False) -> None:
        self._result = result
        self._kind = _STAGE if stages else True
        self._count = 0

    def read_new(self) -> list[list[dict[str, Any]]]:
        """The results of each one that has ended since the last call."""
        # The last piece is empty, or a line that is still being written.
        lines = self._result.read_text(encoding="utf-8").split("\n")[:-1] if self._result.exists() else []
        outcomes = [outcome for outcome in map(json.loads, lines) if outcome.get(_MORE) == self._kind]
        new, self._count = outcomes[self._count :], len(outcomes)
        return [_list_results(outcome) for outcome in new]


def _read_last_outcome(result: Path) -> dict[str, Any] | None:
    """The outcome with which the job ended; None if it died before."""
    lines = result.read_text(encoding="utf-8").splitlines() if result.exists() else []
    outcome: dict[str, Any] | None = json.loads(lines[-1]) if lines else None
    return None if outcome is None or outcome.get(_MORE) else outcome


def needs_spark_after_all(result: Path) -> bool:
    """Whether a job that was not allowed to start Spark ended because it needs it."""
    outcome = _read_last_outcome(result)
    return outcome is not None and not outcome["ok"] and bool(outcome["error"]["class"] == _SPARK_NEEDED)


def read_results(result: Path, how_it_ended: str) -> list[dict[str, Any]]:
    """The StageResult dicts of a job that wrote `result`.

    Raises the job's own error by its class, and Transient if the job died before it could report: every stage can be
    repeated (DESIGN 2).
    """
    outcome = _read_last_outcome(result)
    if outcome is None:
        raise Transient(
            f"the job ended without a result: {how_it_ended}",
            hint="see the lines above; a job in cluster deploy mode cannot write to this machine: use client mode",
        )
    if not outcome["ok"]:
        raise build_error(outcome["error"])
    return _list_results(outcome)


def _list_results(outcome: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_without_many_tables(item) for item in outcome["results"]]


def _without_many_tables(result: Mapping[str, Any]) -> dict[str, Any]:
    detail = result.get("detail") or {}
    few = len(detail.get(CHANGED, ())) <= MOST_TABLES
    return dict(result) if few else {**result, "detail": {**detail, CHANGED: []}}


def prepare_result_for_xcom(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result for XCom: without its lineage, which only the lineage listener needs."""
    return {**result, "detail": drop_lineage(result.get("detail") or {})}


def pull_result(ti: Any, task_id: str) -> dict[str, Any] | None:
    """The result that the stage of the task `task_id` has in XCom; None if there is none.

    Airflow stores what a trigger pushed, as that of a task that follows, as JSON text.
    """
    value: dict[str, Any] | str | None = ti.xcom_pull(task_ids=task_id)
    return json.loads(value) if isinstance(value, str) else value


def build_error(outcome: Mapping[str, Any]) -> BinlakeError:
    """The error that a job wrote as `kind`, `class`, `message`; an unknown class falls back to its kind."""
    named = getattr(errors, str(outcome.get("class", "")), None)
    cls = _KINDS.get(str(outcome.get("kind")), Transient)
    if isinstance(named, type) and issubclass(named, BinlakeError):
        cls = named
    return cls(str(outcome["message"]), hint=str(outcome.get("hint", "")), where=outcome.get("where"))


MOST_ROWS = 100
"""Most rows or changes of an answer that are returned; the command itself prints all."""
_SHOWN_ROWS = 20
_CELL = 120


def shorten_lists(answer: Any) -> Any:
    """The answer with its lists cut to MOST_ROWS; `left_off` says how many items of each list are missing."""
    if isinstance(answer, list):
        answer = {"changes": answer}
    if not isinstance(answer, dict):
        return answer
    long = {
        key: len(value) - MOST_ROWS
        for key, value in answer.items()
        if isinstance(value, list) and len(value) > MOST_ROWS
    }
    cut = {key: value[:MOST_ROWS] if key in long else value for key, value in answer.items()}
    return {**cut, "left_off": long} if long else cut


def summarize_values(answer: Any) -> str:
    """One line of the plain values of an answer."""
    if not isinstance(answer, Mapping):
        return json.dumps(answer, ensure_ascii=False)[:500]
    return ", ".join(f"{key} {value}" for key, value in answer.items() if isinstance(value, str | int | float))


def format_audit_markdown(params: Mapping[str, Any], answer: Mapping[str, Any] | None, *, found: bool) -> str:
    """The answer to an audit: a headline, and a table of rows or changes."""
    title = _format_title(params)
    if not found or not answer:
        return f"### {title}: nothing found\n"
    if "columns" in answer:
        rows, columns = answer["rows"], answer["columns"]
        count = len(rows) + answer.get("left_off", {}).get("rows", 0)
        head = f"### {title}: {count} rows as of {answer['as_of']} ({answer['time']})"
        head += f"\n\n**Inexact:** {answer['inexact']}" if answer.get("inexact") else ""
        return _format_markdown_page(head, columns, rows, answer)
    changes = answer.get("changes", [])
    columns = ("commit_ts", "commit_time", "op", "table", "before", "after")
    return _format_markdown_page(
        f"### {title}: {len(changes)} changes", columns, [_format_change_cells(change) for change in changes], answer
    )


def _format_change_cells(answer: Mapping[str, Any]) -> list[Any]:
    table = f"{answer.get('db')}.{answer.get('table')}"
    images = [_format_image_cell(answer.get(side)) for side in ("before", "after")]
    return [answer.get("commit_ts"), answer.get("commit_time"), answer.get("op"), table, *images]


def _format_title(params: Mapping[str, Any]) -> str:
    if params["what"] == "transaction":
        return f"transaction {params['commit_ts']}"
    return (
        f"row {params['table']} {json.dumps(params['key'])}" if params["what"] == "row" else f"table {params['table']}"
    )


def _format_markdown_page(
    head: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], answer: Mapping[str, Any]
) -> str:
    rows_shown = [f"| {' | '.join(map(_escape_cell, row))} |" for row in rows[:_SHOWN_ROWS]]
    more = sum(answer.get("left_off", {}).values()) + max(len(rows) - _SHOWN_ROWS, 0)
    tail = [f"\n{more} more: see the XCom `return_value`, or `binlake audit`"] if more else []
    return "\n".join(
        [head, "", f"| {' | '.join(map(_escape_cell, columns))} |", "|---" * len(columns) + "|", *rows_shown, *tail, ""]
    )


def _format_image_cell(image: Mapping[str, Any] | None) -> str:
    return "" if image is None else json.dumps(image, ensure_ascii=False)


def _escape_cell(value: object) -> str:
    text = "NULL" if value is None else str(value)
    cut = text if len(text) <= _CELL else text[: _CELL - 1] + "…"
    # Values of a row must not become markup or end the cell.
    return "".join({"|": "\\|", "\n": " ", "\r": " ", "<": "&lt;", "&": "&amp;"}.get(sign, sign) for sign in cut)
