"""The process from which a local Spark session forks its Python workers: it loads once what all workers need.

Spark ends a worker that was idle for a minute, and a new one would import everything again. Only modules that start no
thread are loaded here, because a fork does not copy threads: each worker loads Arrow and numpy itself, and Arrow
without pandas.
"""

from __future__ import annotations

from binlake.common.process import use_system_memory
from binlake.common.startup import import_lightly


def load_before_fork() -> None:
    """Import the modules that every worker needs and that start no thread."""
    import_lightly()
    use_system_memory()
    import pydantic  # noqa: F401
    import pyspark.worker  # noqa: F401
    import structlog  # noqa: F401


def main() -> None:
    """As `python -m pyspark.daemon`, after the imports."""
    load_before_fork()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
