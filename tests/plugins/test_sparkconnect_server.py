"""What a killed client leaves on a Spark Connect server, and how its owner ends it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority
from support.tlsrelay import TlsRelay

from binlake_airflow.operators.spark import add_session, derive_session_id, interrupt
from deploy.local.ports import free_port, is_open

pytestmark = pytest.mark.spark

# Runs far longer than the test, on the server's only core.
_HOG = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
spark.range(10).collect()
print("up", flush=True)
spark.range(10**12).selectExpr("sum(id * id % 7)").collect()
"""


# Binlake's own client, which reports the error as a task would.
_OURS = """
import sys
from binlake.spark_jobs.engine import connect
from binlake.spark_jobs.job.failures import translate_errors
from binlake.errors import Transient
connect.ANSWER_S = float(sys.argv[2])
try:
    with translate_errors():
        spark = connect.connect_session(sys.argv[1])
        print("up", flush=True)
        spark.range(10**12).selectExpr("sum(id * id % 7)").collect()
except Transient as error:
    print(f"transient: {error}", flush=True)
"""
_VERSION = """
import sys
from binlake.spark_jobs.engine import connect
from binlake.spark_jobs.job.failures import translate_errors
from binlake.errors import Transient
try:
    with translate_errors():
        print(connect.connect_session(sys.argv[1]).version)
except Transient as error:
    print(f"transient: {error}")
"""
# It takes 10 s on an idle machine; pyspark alone takes 600 s and more.
_SOON_S = 60


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The URL of a Connect server with one core, and its process."""
    spark_submit = shutil.which("spark-submit", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert spark_submit is not None, "no spark-submit: install the project's packages (`make setup`)"
    port = free_port()
    folder = tmp_path_factory.mktemp("connect")
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
    }
    settings = [text for key, value in conf.items() for text in ("--conf", f"{key}={value}")]
    server_class = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [spark_submit, "--master", "local[1]", *settings, "--class", server_class, "spark-internal"]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(port, process, folder / "log")
        yield f"sc://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(120)


@pytest.fixture
def server(running: tuple[str, subprocess.Popen[bytes]]) -> str:
    """The URL of the server."""
    return running[0]


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if is_open(port):
            return
        time.sleep(0.1)
    pytest.fail(f"the Connect server did not start: {log.read_text()[-2000:]}")


def _hog(url: str) -> subprocess.Popen[str]:
    client = subprocess.Popen([sys.executable, "-c", _HOG, url], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"
    return client


def _waiting_behind(client: subprocess.Popen[str], submit: Callable[[], Future[Any]]) -> Future[Any]:
    """Submit queries until one waits for the job of `client`, then kill that client; return the waiting query."""
    waiting = submit()
    while waiting in wait([waiting], 5).done:
        waiting = submit()
    client.kill()
    client.wait(120)
    return waiting


@pytest.mark.soak
def test_job_of_a_killed_client_can_be_ended_by_its_session(server: str) -> None:
    # Stack facts, "Connect server": kill -9 of a client leaves its job running, on all available cores.
    from pyspark.sql import SparkSession

    url = add_session(server, derive_session_id("orders", "land", 0))
    spark = SparkSession.builder.remote(server).create()
    # The very first query takes seconds to compile and must not be mistaken for a waiting one.
    spark.range(10).selectExpr("sum(id)").collect()
    with ThreadPoolExecutor(1) as pool:
        # The core is busy, so a small query waits for the job, even after the job's client is gone. If the query ends
        # anyway, it was slow for another reason and the client died before its job began; then try again.
        waiting = None
        while waiting is None or waiting.done():
            waiting = _waiting_behind(_hog(url), lambda: pool.submit(spark.range(10).selectExpr("sum(id)").collect))
        said: list[str] = []
        interrupt(url, said.append)
        assert waiting.result(240)[0][0] == 45
    assert said == []
    spark.stop()


@pytest.mark.soak
def test_server_behind_tls_is_checked(server: str, tmp_path: Path) -> None:
    own, stranger = tmp_path / "own", tmp_path / "stranger"
    own.mkdir()
    stranger.mkdir()
    authority = Authority(own)
    with TlsRelay(int(server.rpartition(":")[2]), authority.tls("spark"), ["h2"]) as relay:

        def connect(ca: Path) -> str:
            command = [sys.executable, "-c", _VERSION, f"sc://localhost:{relay.port}/;use_ssl=true"]
            env = {**os.environ, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(ca)}
            return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120).stdout

        assert connect(authority.path).startswith("4.")
        assert connect(Authority(stranger).path).startswith("transient: ")


@pytest.mark.soak
def test_unknown_or_ended_session_is_not_an_error(server: str) -> None:
    said: list[str] = []
    url = add_session(server, derive_session_id("orders", "merge", 0))
    interrupt(url, said.append)
    interrupt(url, said.append)
    assert said == []


def test_unreachable_server_is_reported_but_not_raised() -> None:
    said: list[str] = []
    with pytest.warns(UserWarning, match="RETRIES_EXCEEDED"):
        interrupt(add_session("sc://127.0.0.1:9", derive_session_id("o", "land", 0)), said.append)
    assert len(said) == 1
    assert "could not be interrupted" in said[0]


def _client(url: str, answer_s: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _OURS, url, str(answer_s)], stdout=subprocess.PIPE, text=True)


def _read_within_deadline(client: subprocess.Popen[str]) -> str:
    try:
        return client.communicate(timeout=_SOON_S)[0]
    finally:
        client.kill()


def test_hanging_server_is_a_retryable_error() -> None:
    # It accepts connections and never answers; pyspark alone would wait forever.
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = _client(f"sc://127.0.0.1:{deaf.getsockname()[1]}", 2)
        assert _read_within_deadline(client).startswith("transient: the Spark Connect server does not answer [")


@pytest.mark.soak
def test_server_that_dies_during_a_query_is_an_error_soon(
    running: tuple[str, subprocess.Popen[bytes]],
) -> None:
    # The last test of this file, because no server remains. pyspark alone is silent for 10 to 17 minutes.
    url, process = running
    client = _client(url, 20)
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"
    os.killpg(process.pid, signal.SIGKILL)
    assert "transient: the Spark Connect server no longer answers" in _read_within_deadline(client)
