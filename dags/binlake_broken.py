"""Shows each broken replication file as an import error of this file; the other replications continue.

It is a separate file because Airflow drops all DAGs of a file that fails.
"""

from __future__ import annotations

from binlake.errors import ConfigError
from binlake_airflow.dags.factory import build_all

_broken = build_all().broken
if _broken:
    raise ConfigError("\n".join(str(error) for error in _broken.values()))
