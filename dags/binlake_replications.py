"""Airflow reads Binlake's DAGs from this file: those of each valid replication file.

`binlake_broken.py` shows the invalid ones. A process that runs a task names its DAG, and gets no others.
"""

from __future__ import annotations

from airflow.sdk import get_parsing_context

from binlake_airflow.dags.factory import build_all

globals().update(build_all(only=get_parsing_context().dag_id).dags)
