"""Dumps loaded into a server as the base of a replication."""

from __future__ import annotations

from typing import Any

from support.mariadb import MariaDb

from binlake.config import Replication
from binlake.target import ApplyResult
from binlake.target import base as loading
from binlake.target.base import BaseDump, BaseTask

BASE = 463_267_587_686_400_000
"""The commit_ts of the dumps."""
CLUSTER = 77


def replication(server: MariaDb, **more: Any) -> Replication:
    """A replication whose target is `server`."""
    target = {"db-type": "mysql" if server.name == "mysql" else "mariadb", "host": server.host, "port": server.port,
              "user": server.user, "worker-count": 3}  # fmt: skip
    values = {"name": "restored", "source": {"pd-urls": ["http://127.0.0.1:1"]}, "lake": {"path": "/nowhere"}}
    return Replication.model_validate({**values, "target": target, **more})


def load_base(replication: Replication, base: BaseDump, cluster_id: int, **more: Any) -> ApplyResult:
    """Load `base` into the target of a replication."""
    return loading.load_base(replication.require_sql_target(), BaseTask.of(replication, cluster_id), base, **more)
