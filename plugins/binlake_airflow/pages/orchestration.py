"""What Airflow knows about a replication, for the computation of its health: for a page, and `status --airflow`."""

from __future__ import annotations

from binlake.config import Replication
from binlake.health.reading import Orchestration
from binlake_airflow.pages.runs import read_dag_facts, read_scheduler_facts
from binlake_airflow.pages.sparkserver import find_spark_address


def read_orchestration(replication: Replication) -> Orchestration:
    """Its DAGs, the scheduler and Spark's address; reads Airflow's database."""
    return Orchestration(
        read_dag_facts(replication.name), read_scheduler_facts(), lambda: find_spark_address(replication)
    )
