"""Runs of `binlake reparo` in tests: settings for a server, and the base to which a capture's files apply."""

from __future__ import annotations

import dataclasses
import io
from contextlib import closing
from pathlib import Path

from support.mariadb import MariaDb

from binlake.binlogfile.folder import INDEX_PATH as PATH
from binlake.binlogfile.folder import BinlogIndex, IndexedFile, compute_checksum, read_index, select_binlog_files
from binlake.binlogfile.framing import read_records
from binlake.binlogfile.reading import parse_item
from binlake.common.filestore import LocalStore
from binlake.config.servers import TargetSection
from binlake.extras.reparo.restore import Restored, restore
from binlake.extras.reparo.settings import ReparoSettings
from binlake.rules import Rules
from binlake.target import Hook, TargetSession
from binlake.testkit.captures import compare_state, connect
from binlake.testkit.captures.capture import Capture, StateAt
from binlake.testkit.captures.state import Comparison
from deploy.local.commitlog import find_tables_in_doubt, plan_ddl, read_log
from deploy.local.direct import DirectReplay
from deploy.local.handwork import plan_handwork


def settings_of(server: MariaDb, folder: Path, **values: object) -> ReparoSettings:
    """Settings for the files in `folder` and the target `server`."""
    place = {"host": server.host, "port": server.port, "user": server.user}
    given = {key.replace("_", "-"): value for key, value in values.items()}
    return ReparoSettings.model_validate({"data-dir": str(folder), "dest-type": server.name, "dest-db": place, **given})


def run(server: MariaDb, folder: Path, hook: Hook | None = None, **values: object) -> Restored:
    """Run reparo once."""
    return restore(settings_of(server, folder, **values), LocalStore(folder), hook=hook)


def write_index(folder: Path, lo: int) -> None:
    """Write an index of all existing files, as a feed does; it says that they hold everything after `lo`."""
    store, found = LocalStore(folder), []
    for file in select_binlog_files(store.list("")):
        content = store.get(file.name) or b""
        stamps = [parse_item(one, file.name).commit_ts for one in read_records(io.BytesIO(content), file.name)]
        found.append(
            IndexedFile(file.name, stamps[0], stamps[-1], len(content), len(stamps), compute_checksum(content))
        )
    store.put(PATH, BinlogIndex("r.f", lo, found[-1].last, tuple(found)).to_json())


def drop_files_before(folder: Path, ts: int) -> None:
    """Delete the files that end before `ts`, as a feed's retention does."""
    store = LocalStore(folder)
    index = read_index(store)
    assert index is not None
    gone = [file for file in index.files[:-1] if file.last < ts]
    left = tuple(file for file in index.files if file not in gone)
    lo = gone[-1].last if gone else index.lo
    store.put(PATH, dataclasses.replace(index, lo=lo, files=left).to_json())
    for file in gone:
        store.delete(file.name)


def load_base(capture: Capture, server: MariaDb, commit_ts: int) -> None:
    """Fill an empty server with the source as of `commit_ts`, by the pipeline's functions instead of files."""
    log = read_log(capture)
    target = TargetSection(db_type=server.name, host=server.host, port=server.port, user=server.user)
    hands = plan_handwork(plan_ddl(log), capture.read_states(), find_tables_in_doubt(log))
    with closing(TargetSession(target)) as session:
        replay = DirectReplay(
            log,
            session,
            hands,
            new_collation=bool(capture.meta.get("new_collation", True)),
            rules=Rules(second_writes="once"),
            dialect=server.name,
        )
        replay.advance(commit_ts)


def compare_with_state(capture: Capture, state: StateAt, server: MariaDb) -> Comparison:
    """Compare the server's content with what TiDB showed in `state`."""
    connection = connect(server.host, server.port, server.user, server.password)
    new_collation = bool(capture.meta.get("new_collation", True))
    try:
        return compare_state(
            state,
            connection,
            dialect=server.name,
            ignored=("tidb_binlog", "binlake_reparo"),
            new_collation=new_collation,
        )
    finally:
        connection.close()
