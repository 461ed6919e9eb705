"""The links of a stage's task: the page of its window, and Spark's pages if Spark ran it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from binlake_airflow.operators.links import SparkPagesLink, WindowPageLink, build_link_xcoms
from binlake_airflow.operators.sparkstages import RUNTIMES
from binlake_airflow.provider import get_provider_info

KEY: Any = SimpleNamespace(dag_id="orders", run_id="manual__1+0")


def _find_spark(*pages: str) -> str:
    results = [{"detail": {"spark_pages": page} if page else {}} for page in pages]
    operator: Any = SimpleNamespace(results=results)
    return SparkPagesLink().get_link(operator, ti_key=KEY)


@pytest.mark.parametrize(("base", "begin"), [("http://a:1/air/", "http://a:1/air"), ("", "")])
def test_task_links_to_the_page_of_its_run(monkeypatch: pytest.MonkeyPatch, base: str, begin: str) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
    operator: Any = SimpleNamespace(results=[])
    assert WindowPageLink().get_link(operator, ti_key=KEY) == f"{begin}/binlake/dags/orders/runs/manual__1%2B0"


def test_task_links_to_the_spark_that_ran_its_stage_last() -> None:
    assert _find_spark("http://old:1", "http://new:2", "") == "http://new:2"
    assert _find_spark("", "") == ""
    assert _find_spark("javascript:alert(1)") == ""
    assert list(build_link_xcoms("orders", "r", {"detail": {}})) == ["_link_WindowPageLink"]


def test_every_stage_has_the_links_and_airflow_knows_them() -> None:
    known = {path.rpartition(".")[2] for path in get_provider_info()["extra-links"]}
    for kind in RUNTIMES.values():
        assert {type(link).__name__ for link in kind.operator_extra_links} == known
