"""A job that answers from a script and does no work; it shows how an operator reacts to each answer.

It takes the arguments of `binlake.spark_jobs.commands.main` (after spark-submit's own, if it replaces spark-submit), or
those of `binlake_airflow.operators.child`: the result file, a command, its arguments. The script is JSON in the folder
`BINLAKE_TEST_SCRIPT`: for each stage (for a feed: STAGE-FEED) a list of answers, one per try; the last one repeats. An
answer is an outcome, or {"exit": N} to exit with that code and without a result. The job records its calls in the same
folder as lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Record the call, and write the answer."""
    folder = Path(os.environ["BINLAKE_TEST_SCRIPT"])
    before, own = _split(argv)
    if own[0].endswith(".json"):
        own = [*own[1:], "--result", own[0]]
    options = _options(own[1:])
    is_stage_of_feed = own[0] in ("encode", "publish")
    stage = f"{own[0]}-{options['--feed']}" if is_stage_of_feed else own[0]
    calls = folder / "calls.jsonl"
    earlier = calls.read_text().splitlines() if calls.exists() else []
    tries = sum(json.loads(line)["stage"] == stage for line in earlier)
    with calls.open("a") as out:
        out.write(json.dumps({"stage": stage, "options": options, "before": before}) + "\n")
    answers = json.loads((folder / "script.json").read_text())[stage]
    answer = answers[min(tries, len(answers) - 1)]
    print(f"scripted {stage}: {answer}")
    if "exit" in answer:
        return int(answer["exit"])
    Path(options["--result"]).write_text(json.dumps(answer))
    return 0 if answer["ok"] else 1


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    at = next((i for i, text in enumerate(argv) if text.endswith("main.py")), -1)
    return argv[: at + 1], argv[at + 1 :]


def _options(words: list[str]) -> dict[str, str]:
    """Options with their values; an option without a value is `true`, positional arguments get numbers."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        after = words[at + 1] if at + 1 < len(words) else "--"
        if word.startswith("--"):
            found[word] = "true" if after.startswith("--") else after
        elif not (at and words[at - 1].startswith("--")):
            found[str(len(found))] = word
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
