"""A lake's object store by https://: all three clients of Binlake check its certificate, by the same setting."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.certificates import Authority
from support.tlsrelay import TlsRelay

from deploy.local.s3 import S3

pytestmark = [pytest.mark.process, pytest.mark.soak]

# In its own process: the clients read the variable once.
_CLIENTS = """
import sys
import deltalake, obstore, pyarrow as pa, pyarrow.fs as fs
from binlake.lake import access, objects, store
from binlake.lake.access import Access, register_access

access._ATTEMPTS = 1
root = f"s3://{sys.argv[2]}/lakes"
register_access(root, Access(sys.argv[1]))
options = {**(store.build_delta_options(root) or {}), "max_retries": "0"}
for name, work in {
    "objects": lambda: obstore.put(objects.open_objects(root, 0.1), "one", b"1"),
    "files": lambda: store.open_files(root)[0].get_file_info(fs.FileSelector(root[5:])),
    "tables": lambda: deltalake.write_deltalake(f"{root}/t", pa.table({"a": [1]}), storage_options=options),
}.items():
    try:
        work()
        print(name, "ok")
    except Exception as error:
        print(name, type(error).__name__)
"""


def test_store_with_another_certificate_is_refused(s3: S3, tmp_path: Path) -> None:
    bucket, own, stranger = f"tls-{time.time_ns()}", tmp_path / "own", tmp_path / "stranger"
    s3.create_bucket(bucket)
    own.mkdir()
    stranger.mkdir()
    authority = Authority(own)
    with TlsRelay(s3.port, authority.tls("store")) as relay:

        def use(ca: Path) -> list[str]:
            keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
            command = [sys.executable, "-c", _CLIENTS, f"https://localhost:{relay.port}", bucket]
            env = {**os.environ, **keys, "SSL_CERT_FILE": str(ca)}
            return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()

        assert use(authority.path) == ["objects ok", "files ok", "tables ok"]
        assert use(Authority(stranger).path) == ["objects GenericError", "files OSError", "tables OSError"]
