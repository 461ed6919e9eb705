"""Spark's exceptions become Binlake errors whose class decides about a retry; other exceptions stay unchanged."""

from __future__ import annotations

from types import SimpleNamespace

import grpc
import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from binlake.errors import Transient
from binlake.spark_jobs.engine import connect
from binlake.spark_jobs.job.failures import translate


@pytest.mark.parametrize("lost", ["INVALID_HANDLE.SESSION_NOT_FOUND", "INVALID_HANDLE.OPERATION_NOT_FOUND"])
def test_lost_server_session_is_retryable(lost: str) -> None:
    # The server was restarted.
    assert type(translate(RuntimeError(f"[{lost}] The handle 12 is invalid."))) is Transient


class _Rpc(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def trailing_metadata(self) -> None:
        return None


def test_unreachable_connect_server_is_retryable() -> None:
    found = translate(SparkConnectGrpcException("refused", grpc_status_code=grpc.StatusCode.UNAVAILABLE))
    assert type(found) is Transient
    assert type(translate(_Rpc(grpc.StatusCode.UNAVAILABLE))) is Transient
    assert translate(_Rpc(grpc.StatusCode.INVALID_ARGUMENT)) is None


def test_outage_timeout_covers_all_calls_together(monkeypatch: pytest.MonkeyPatch) -> None:
    # pyspark restarts its ten minutes with each call: the query, the error's details, the cleanup.
    clock = iter((100.0, 104.0, 107.9, 108.0, 112.0, 121.0))
    # Not in module `time` itself, which other threads ask too.
    monkeypatch.setattr(connect, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    policy, away = connect.Patience(), _Rpc(grpc.StatusCode.UNAVAILABLE)
    # 9 s without a failure: the next failure belongs to another outage.
    assert [policy.can_retry(away) for _ in range(6)] == [True, True, True, False, False, True]
    assert not policy.can_retry(ValueError("no error of the server"))


def test_other_exceptions_are_not_translated() -> None:
    assert translate(RuntimeError("out of memory")) is None
