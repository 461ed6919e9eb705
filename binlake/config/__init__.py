"""The configuration of one replication: read once from TOML, then frozen; unknown keys are refused."""

from binlake.config.load import load_replication
from binlake.config.model import Replication

__all__ = ["Replication", "load_replication"]
