"""The commands by purpose, as `binlake --help` shows them: a command's own package is imported only when it runs."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Collection, Mapping

PURPOSES: Mapping[str, Mapping[str, str]] = {
    "Replicate": {
        "preflight": "compare tables with the target's before the first window",
        "window": "run the next window, or list windows",
        "bootstrap": "load the rows that the source already has",
        "status": "how each replication is, how far behind, what to do",
        "doctor": "check everything that a replication needs",
        "config": "check a replication's file, explain its keys",
    },
    "Look at data, compare it": {
        "audit": "a row's history, a table as of a time, a transaction",
        "verify": "compare the target with the lake or the source",
        "validation": "what the validation of changed rows found",
    },
    "Put something right": {
        "ddl": "a DDL that blocks: release, replace, leave out; shard locks",
        "table": "set a table aside, bring it back",
        "checkpoint": "the target's checkpoint: show, set, adopt",
        "repair": "apply the fixes that verify wrote",
        "backfill": "rebuild, repair, replay or undo a past range",
        "restore": "bring a database to a past commit_ts",
        "recover": "finish an open window when the source is gone",
        "stage": "run one stage of a window",
        "maintain": "join small files of the lake, delete old ones",
    },
    "Sources and pumps": {
        "feeder": "read MySQL and MariaDB servers into the pumps",
        "pd": "run the embedded placement driver",
        "pump": "run a pump",
        "pumps": "list pumps",
        "pause-pump": "stop a pump that will come back",
        "offline-pump": "remove a pump",
        "update-pump": "rewrite a pump's state in the registry",
        "txn": "decide a transaction whose outcome is unknown",
        "generate_meta": "write a savepoint with PD's newest timestamp",
    },
    "Consumers of the pumps": {
        "drainers": "list consumers",
        "pause-drainer": "let no window of a replication start",
        "resume-drainer": "let them start again",
        "offline-drainer": "remove a consumer",
        "update-drainer": "rewrite a consumer's state in the registry",
    },
    "Feeds and binlog files": {
        "changefeed": "create, list, pause, resume, remove feeds",
        "feed": "show the messages of a topic or of files",
        "files": "list and verify binlog files",
        "reparo": "apply binlog files to a database",
    },
    "Set up, change over, try": {
        "airflow": "put the DAG files into Airflow's folder",
        "spark": "write the archive for a cluster's executors",
        "completion": "the script for bash, zsh or fish",
        "dm": "take over DM's task and source files",
        "drainer": "take over a drainer's configuration",
        "capture": "replay a recorded TiDB",
        "workload": "write a generated load to the pumps",
    },
}  # fmt: skip
"""By purpose, the commands and a line about each."""
_OTHER = "Other"


def describe_commands(installed: Collection[str]) -> str:
    """The `installed` commands, one a line, by purpose; those of other packages at the end."""
    known = {name for commands in PURPOSES.values() for name in commands}
    others = {name: "" for name in sorted(set(installed) - known)}
    width = max(map(len, installed), default=0)
    parts = []
    for purpose, commands in {**PURPOSES, _OTHER: others}.items():
        lines = [f"{name:{width}}  {text}".rstrip() for name, text in commands.items() if name in installed]
        if lines:
            parts.append(f"{purpose}:\n" + textwrap.indent("\n".join(lines), "  "))
    return "\n\n".join(parts)


def explain_unknown_command(name: str, installed: Collection[str]) -> str:
    """The error for a command that does not exist, with similar ones."""
    similar = difflib.get_close_matches(name, installed, n=3)
    guess = f"; did you mean {' or '.join(similar)}?" if similar else ";"
    return f"there is no command {name!r}{guess} `binlake --help` lists all commands"
