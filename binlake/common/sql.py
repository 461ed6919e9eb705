"""SQL without a connection: the dialects of targets, the answer of SHOW GRANTS, and the files of `sql/`.

The files have Binlake's tables on a target, one each; audit queries (`audit_*`); and demo data. A wheel has the folder
as `binlake/sql`, so that nothing of the name `sql` is at the top level of an installation. In the files of tables,
`{schema}` stands for the quoted name of their schema (target.checkpoint-schema).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

Dialect = Literal["mysql", "mariadb", "tidb"]


def parse_privileges(grant: str) -> list[str]:
    """The privileges of one GRANT, in upper case and without columns; empty for a role."""
    words = re.match(r"GRANT (.+?) ON ", grant)
    return [re.sub(r"\s*\(.*", "", privilege).strip().upper() for privilege in words[1].split(",")] if words else []


TABLES = ("checkpoint", "binlake_owner", "binlake_lease", "binlake_fence", "binlake_progress", "binlake_ledger")
"""Tables of the checkpoint schema; `sql/<name>.sql` creates each. If they exist, Binlake has already applied there."""
LATER = ("binlake_aside", "binlake_position", "binlake_opened")
"""Tables added in later versions: a target that an older version created lacks them until its next window."""

_CORE = Path(__file__).parents[1]


def read(name: str) -> str:
    """Return the text of `sql/<name>`, in a checkout or an installed package. Raises FileNotFoundError."""
    folder = _CORE / "sql"
    if not folder.is_dir():
        folder = _CORE.parent / "sql"
    return (folder / name).read_text(encoding="utf-8")


def read_statement(table: str) -> str:
    """Return the statement of `sql/<table>.sql`, without comment lines. Raises FileNotFoundError."""
    text = read(f"{table}.sql")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip().rstrip(";")


def read_steps(name: str, **values: object) -> dict[str, list[str]]:
    """Return a demo's statements by step (`-- step: NAME`); `values` replace `{...}`. Raises FileNotFoundError."""
    steps: dict[str, list[str]] = {}
    for part in read(name).split("-- step: ")[1:]:
        step, _, text = part.partition("\n")
        statements = (statement.strip() for statement in text.format_map(values).split(";\n"))
        steps[step.strip()] = [statement for statement in statements if statement]
    return steps
