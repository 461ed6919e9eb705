"""The process that Spark forks its Python workers from, in a session on this machine: what all need is loaded once.

A worker that was idle for a minute is ended, and the next one imports everything again. Only what starts no thread is
loaded here, for a fork takes no thread along: Arrow and numpy stay the workers' own, and Arrow comes without pandas.
"""

from __future__ import annotations

from binlake.base.lightimport import import_lightly


def load_before_fork() -> None:
    """Import what every worker needs and what starts no thread."""
    import_lightly()
    import pydantic  # noqa: F401
    import pyspark.worker  # noqa: F401
    import structlog  # noqa: F401


def main() -> None:
    """What `python -m pyspark.daemon` does."""
    load_before_fork()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
