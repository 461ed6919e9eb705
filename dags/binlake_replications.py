"""Airflow reads Binlake's DAGs from this file: those of each valid replication file.

`binlake_broken.py` shows the invalid ones.
"""

from __future__ import annotations

from binlake_airflow.dags.factory import build_all

globals().update(build_all().dags)
