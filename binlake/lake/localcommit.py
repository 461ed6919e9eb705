"""Commits actions to a Delta table on a local disk, as delta-rs does there: the next file of the log is linked to its
name, which fails if there is one. So of two writers of a version one is refused.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from binlake.lake.storetable import Action, format_commit

log = structlog.get_logger(__name__)

_CHECKPOINT_EVERY = 50
"""Commits between two checkpoints, if the table has no such property."""


def commit_actions(path: str, table: DeltaTable, actions: Sequence[Action], about: Mapping[str, Any]) -> None:
    """Commit `actions` to `table` at `path` as the version after its own, with `about` as the commit's information.

    `table` is at that version afterwards. Raises CommitFailedError if there is one already, OSError.
    """
    version = table.version() + 1
    folder = Path(path) / "_delta_log"
    own = folder / f"_commit_{uuid.uuid4()}.json.tmp"
    try:
        own.write_bytes(format_commit(actions, about))
        os.link(own, folder / f"{version:020}.json")
    except FileExistsError as error:
        raise CommitFailedError(f"version {version} of {path} was committed by another process") from error
    finally:
        own.unlink(missing_ok=True)
    table.update_incremental()
    interval = int(table.metadata().configuration.get("delta.checkpointInterval") or _CHECKPOINT_EVERY)
    if (version + 1) % interval == 0:
        try:
            table.create_checkpoint()
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            # What was committed is there; without a checkpoint, the log is read further back.
            log.warning("checkpoint_not_written", table=path, error=str(error))


def build_transaction(app: str, version: int) -> Action:
    """The action that records `version` as the position of the application `app`."""
    return {"txn": {"appId": app, "version": version, "lastUpdated": int(time.time() * 1000)}}
