"""The paths of one replication's tables. Only this module joins lake paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from binlake.config import Replication
from binlake.lake.access import Access, is_remote, register_access

_SIGNS = re.compile(r'[\x00-\x1f\x7f/\\%=\[\]{}|^#?*:<>"`]')
"""Characters that are unsafe in folder names: delta-rs, globs, URIs or SQL would interpret them."""


@dataclass(frozen=True)
class LakePaths:
    """Folders (or URIs) below `<lake>/<replication>/`."""

    root: str

    @classmethod
    def of(cls, replication: Replication) -> LakePaths:
        """The paths of `replication`. A relative local path is relative to the working folder.

        From now on this process reaches a lake in an object store as the section `lake.storage` says.
        """
        base = replication.lake.path.rstrip("/")
        if base.startswith("file://"):
            base = unquote(base.removeprefix("file://"))
        if base.startswith("s3a://"):  # Hadoop's name for the same store
            base = f"s3://{base.removeprefix('s3a://')}"
        if not is_remote(base):
            base = str(Path(base).expanduser().absolute())
        root, storage = f"{base}/{replication.name}", replication.lake.storage
        if is_remote(root):
            register_access(root, Access(storage.endpoint, storage.region, storage.credentials))
        return cls(root)

    @property
    def local(self) -> Path | None:
        """The root as a local folder; None when it is on an object store."""
        return None if is_remote(self.root) else Path(self.root)

    def locate_table(self, name: str) -> str:
        """The path of the Delta table `name`."""
        return f"{self.root}/{name}"

    def locate_mirror(self, db: str, table: str) -> str:
        """The path of the mirror of the source's `db`.`table`; each name is one folder, whatever its characters."""
        return f"{self.root}/mirror/{_escape_folder(db)}/{_escape_folder(table)}"

    def locate_staging(self, name: str) -> str:
        """The folder `name` for rows that a stage's tasks pass on to others; it lives as long as the stage."""
        return f"{self.root}/_staging/{name}"


def _escape_folder(name: str) -> str:
    """`name` as one folder name; each unsafe character is replaced by `=` and its hex code."""
    # Not percent-encoded: delta-rs writes a folder `a%2Fb`, but does not find it again.
    if name in (".", ".."):
        return name.replace(".", "=2E")
    return _SIGNS.sub(lambda sign: f"={ord(sign[0]):02X}", name)
