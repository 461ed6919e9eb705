"""What Airflow's list of providers shows of Binlake (entry point `apache_airflow_provider`).

The plugin is not named here: Airflow finds it by the entry point `airflow.plugins`, and would load it twice. Operator
links are the plugin's too. The connection types are written out, since Airflow reads this without importing hooks.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

_HOOKS = "binlake_airflow.hooks"
_TYPES = (
    ("binlake_database", "DatabaseHook", "Binlake: MySQL, MariaDB, TiDB"),
    ("binlake_pd", "PdHook", "Binlake: placement driver"),
    ("binlake_lake", "LakeHook", "Binlake: lake"),
    ("binlake_kafka", "KafkaHook", "Binlake: Kafka"),
    ("binlake_registry", "RegistryHook", "Binlake: schema registry"),
)


def get_provider_info() -> dict[str, Any]:
    """In the form of Airflow's provider schema."""
    return {
        "package-name": "binlake",
        "name": "Binlake",
        "description": "Replicates TiDB, MySQL and MariaDB into a database, a lakehouse and feeds.",
        "extra-links": [f"binlake_airflow.operators.links.{name}" for name in ("WindowPageLink", "SparkPagesLink")],
        "versions": [version("binlake")],
        "connection-types": [
            {"connection-type": name, "hook-class-name": f"{_HOOKS}.{hook}", "hook-name": shown}
            for name, hook, shown in _TYPES
        ],
    }
