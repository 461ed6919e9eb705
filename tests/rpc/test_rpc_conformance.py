"""The RPC layer checked by external tools: h2spec's 145 cases, nghttp2's client and its load generator."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from rpc_helpers import EMPTY, serving

from deploy.setup.h2tools import build_environment, find_tool, install_h2spec

pytestmark = pytest.mark.process


def run(name: str, *arguments: str) -> str:
    """The output of the tool."""
    tool = find_tool(name)
    assert tool is not None, f"{name} is not installed: run `make setup-tests`"
    done = subprocess.run(
        [tool, *arguments], capture_output=True, text=True, timeout=500, env=build_environment(), check=False
    )
    return done.stdout + done.stderr


@pytest.mark.soak
def test_h2spec_finds_no_fault() -> None:
    install_h2spec()
    with serving() as (_, address):
        host, _, port = address.rpartition(":")
        said = run("h2spec", "-h", host, "-p", port, "-o", "3", "-P", "/page")
    assert re.search(r"(\d{3}) tests, \1 passed, 0 skipped, 0 failed", said), said[-3000:]


def test_nghttp_gets_pages_with_priorities_and_a_small_window() -> None:
    with serving() as (_, address):
        said = run("nghttp", "-nv", "-w", "8", "-W", "8", "-m", "5", f"http://{address}/page?x=1")
    assert said.count(":status: 200") == 5, said[-3000:]


@pytest.mark.parametrize("streams", ["1", "100"])
def test_all_requests_of_h2load_are_answered(tmp_path: Path, streams: str) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"\x00\x00\x00\x00\x05hello")
    head = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    with serving() as (_, address):
        said = run("h2load", "-n", "5000", "-c", "4", "-m", streams, "-d", str(body), *head, f"http://{address}{EMPTY}")
    assert "5000 succeeded, 0 failed, 0 errored, 0 timeout" in said, said
