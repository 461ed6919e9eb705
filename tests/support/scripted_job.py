"""A job that answers as its script says, to show what an operator does with any answer; it does no work.

Takes the arguments of `spark_jobs.main` (after spark-submit's own, when it stands in for that). The script is JSON in
the folder `BINLAKE_TEST_SCRIPT`: for each stage a list of answers, one a try; the last one repeats. An answer is an
outcome, or {"exit": N}: end so, without a result. Calls are kept there as lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Keep the call, write the answer."""
    folder = Path(os.environ["BINLAKE_TEST_SCRIPT"])
    before, own = _split(argv)
    stage, options = own[0], dict(zip(own[1::2], own[2::2], strict=True))
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
