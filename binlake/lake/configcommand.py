"""`binlake config check` of a lake in an object store: beside the file, the store is tried."""

from __future__ import annotations

import argparse

from binlake.cluster.control import config
from binlake.config.model import Replication
from binlake.lake.access import is_remote
from binlake.lake.paths import LakePaths
from binlake.lake.storecheck import try_store


class LakeConfigCommand(config.SourceConfigCommand):
    """Check a replication file and, of a lake in an object store, the store; or print the reference of all keys."""

    def check(self, args: argparse.Namespace) -> Replication:
        """The replication of the checked file. Raises ConfigError, and what trying the store raises."""
        replication = super().check(args)
        paths = LakePaths.of(replication)
        if is_remote(paths.root):
            try_store(paths)
        return replication
