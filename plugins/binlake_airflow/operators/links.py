"""Links of a stage's task in Airflow's UI: the page of its run, and Spark's own pages if Spark ran the stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from binlake_airflow.telemetry.addresses import PAGES, is_page_address, read_base_url


class WindowPageLink(BaseOperatorLink):
    """The page of the run: bounds, rows, seconds and engine of each stage."""

    name = "Window"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Its address; without `[api] base_url`, its path."""
        del operator
        return build_window_address(ti_key.dag_id, ti_key.run_id)


class SparkPagesLink(BaseOperatorLink):
    """The pages of the Spark that ran the stage last."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Their address; empty if a process ran the stage, or if the address is unknown."""
        del ti_key
        return find_spark_address(operator.results)


def build_window_address(dag_id: str, run_id: str) -> str:
    """The address of the page of a run."""
    return f"{read_base_url()}{PAGES}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def find_spark_address(results: Sequence[Mapping[str, Any]]) -> str:
    """The address of Spark's pages in the last of `results` that has one; empty if none has."""
    found = [str((result.get("detail") or {}).get("spark_pages", "")) for result in results]
    # Who writes to the lake must not be able to put a script into a page.
    return next((address for address in reversed(found) if is_page_address(address)), "")


def build_link_xcoms(dag_id: str, run_id: str, result: Mapping[str, Any]) -> dict[str, str]:
    """The links as XComs of a task that no operator ends."""
    links = {WindowPageLink: build_window_address(dag_id, run_id), SparkPagesLink: find_spark_address([result])}
    return {kind().xcom_key: address for kind, address in links.items() if address}


LINKS = (WindowPageLink(), SparkPagesLink())
