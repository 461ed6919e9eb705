"""Where the tables of one replication are: the only place that joins lake paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from binlake.config import Replication


@dataclass(frozen=True)
class LakePaths:
    """Folders (or URIs) below `<lake>/<replication>/`."""

    root: str

    @classmethod
    def of(cls, replication: Replication) -> LakePaths:
        """The paths of `replication`; a relative local path counts from the working folder."""
        base = replication.lake.path.rstrip("/")
        if "://" not in base:
            base = str(Path(base).expanduser().absolute())
        return cls(f"{base}/{replication.name}")

    @property
    def local(self) -> Path | None:
        """The root as a local folder; None when it is on an object store."""
        if self.root.startswith("file://"):
            return Path(self.root[7:])
        return None if "://" in self.root else Path(self.root)

    def table(self, name: str) -> str:
        """The Delta table `name`."""
        return f"{self.root}/{name}"

    def mirror(self, db: str, table: str) -> str:
        """The mirror of `db`.`table`."""
        return f"{self.root}/mirror/{db}/{table}"

    def staging(self, window: str) -> str:
        """Where land keeps what it pulled until it is proved complete."""
        return f"{self.root}/_staging/{window}"
