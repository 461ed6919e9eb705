"""Shows each replication file that gives no DAG as the import error of this file; the other replications run on.

A file of its own, because Airflow drops all DAGs of a file that fails.
"""

from __future__ import annotations

from binlake.errors import ConfigError
from binlake_airflow.dags.factory import build_all

_broken = build_all().broken
if _broken:
    raise ConfigError("\n".join(str(error) for error in _broken.values()))
