"""A `spark-submit` that answers from a script (support.scripted_job), for callers that start it by name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from support import scripted_job


def scripted_spark(place: Path) -> dict[str, str]:
    """Put it into the folder `place`; return the environment that finds it, with a folder for its jars."""
    bin_folder, jars = place / "bin", place / "jars"
    for folder in (bin_folder, jars):
        folder.mkdir(parents=True)
    (jars / "delta.jar").touch()
    program = bin_folder / "spark-submit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{scripted_job.__file__}" "$@"\n')
    program.chmod(0o755)
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    return {"BINLAKE_TEST_SCRIPT": str(place), "BINLAKE_JARS": str(jars), "PATH": path}


def script(place: Path, answers: dict[str, list[dict[str, Any]]]) -> None:
    """Set its answers from now on: by stage, a list of answers, one per try."""
    (place / "script.json").write_text(json.dumps(answers))
