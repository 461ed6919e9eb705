"""Airflow reads its DAGs here: one DAG for each replication file that describes one.

The files that do not are shown by `binlake_broken.py`.
"""

from __future__ import annotations

from binlake_airflow.dags.factory import build_all

globals().update(build_all().dags)
