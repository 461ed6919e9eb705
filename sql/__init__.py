"""SQL files: the tables of Binlake's own on a target, one each; the questions of audits (`audit_*`, Spark SQL); demos.

In the first `{schema}` stands for the quoted name of their schema (target.checkpoint-schema).
"""

from __future__ import annotations

from importlib.resources import files

TABLES = ("checkpoint", "binlake_owner", "binlake_lease", "binlake_fence", "binlake_progress", "binlake_ledger")
"""Tables of the checkpoint schema; `sql/<name>.sql` creates each. Where they are, Binlake has been at work."""
LATER = ("binlake_aside",)
"""Tables that came to them: a target of an older version lacks them until its next window."""


def read(name: str) -> str:
    """The text of `sql/<name>`, from a checkout and from an installed package. Raises FileNotFoundError."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def statement(table: str) -> str:
    """The statement that creates `table`, without comment lines. Raises FileNotFoundError."""
    text = read(f"{table}.sql")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip().rstrip(";")


def read_steps(name: str, **values: object) -> dict[str, list[str]]:
    """The statements of a demo by its steps, `-- step: NAME`; `values` replace `{...}`. Raises FileNotFoundError."""
    steps: dict[str, list[str]] = {}
    for part in read(name).split("-- step: ")[1:]:
        step, _, text = part.partition("\n")
        statements = (statement.strip() for statement in text.format_map(values).split(";\n"))
        steps[step.strip()] = [statement for statement in statements if statement]
    return steps
