"""The client of a running Airflow: what it repeats, and what it does not."""

from __future__ import annotations

import json

import httpx
import pytest

from deploy.local.airflow_client import AirflowClient


def build_client(answers: list[int], asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> AirflowClient:
    """A client whose server answers with these statuses, and what it was asked for."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content)["is_paused"])
        return httpx.Response(answers[len(asked) - 1], request=request)

    login = httpx.Response(201, json={"access_token": "t"}, request=httpx.Request("POST", "http://here/auth/token"))
    monkeypatch.setattr(httpx, "post", lambda *_, **__: login)
    client = AirflowClient("http://here", "admin", "secret")
    client.close()
    client.http = httpx.Client(base_url="http://here", transport=httpx.MockTransport(answer))
    return client


@pytest.mark.parametrize(
    ("answers", "error"),
    [([200], False), ([500, 200], False), ([500, 500], True), ([404], True)],
    ids=["at once", "the second time", "never", "no such DAG"],
)
def test_a_dag_is_paused_again_if_the_server_failed(
    answers: list[int], error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    client = build_client(answers, asked, monkeypatch)
    if error:
        with pytest.raises(httpx.HTTPStatusError):
            client.set_paused("demo", True)
    else:
        client.set_paused("demo", True)
    assert asked == [True] * len(answers)
