"""What Airflow's list of providers shows of Binlake (entry point `apache_airflow_provider`).

The plugin is not named here: Airflow finds it by the entry point `airflow.plugins`, and would load it twice.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any


def get_provider_info() -> dict[str, Any]:
    """In the form of Airflow's provider schema."""
    return {
        "package-name": "binlake",
        "name": "Binlake",
        "description": "Replicates TiDB, MySQL and MariaDB into a database, a lakehouse and feeds.",
        "extra-links": [f"binlake_airflow.operators.links.{name}" for name in ("WindowPageLink", "SparkPagesLink")],
        "versions": [version("binlake")],
    }
