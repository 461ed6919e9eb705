"""For deployments that mount this folder as Airflow's plugins folder: the only file in it that Airflow loads itself.

Airflow imports every Python file below that folder by its stem, unless `.airflowignore` excludes it (hazards R-45).
"""

from binlake_airflow.plugin import BinlakePlugin

__all__ = ["BinlakePlugin"]
