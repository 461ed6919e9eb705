"""Displayed configuration contains no password: DAG docs are shown in the UI and sent by OpenLineage."""

from pathlib import Path

import pytest

from binlake.config import Replication
from binlake_airflow.dags.dagparts import ReplicationFile, build_empty_dag


@pytest.mark.parametrize(
    ("lake", "shown"),
    [
        ("s3a://key:s3cret@bucket/lakes", "s3a://bucket/lakes"),
        ("s3a://key:s3/cr@et@bucket/lakes", "s3a://bucket/lakes"),
        ("s3a://bucket/lakes?token=s3cret", "s3a://bucket/lakes"),
        ("abfss://box@us.dfs.core.windows.net/l", "abfss://box@us.dfs.core.windows.net/l"),
        ("file:///mnt/lakes", "file:///mnt/lakes"),
        ("/mnt/l@kes?", "/mnt/l@kes?"),
    ],
)
def test_docs_of_a_dag_name_its_source_and_lake_without_passwords(lake: str, shown: str) -> None:
    pds = "http://me:s3cret@pd-1:2379, https://me:s3/cr@et@pd-2:2379/?token=s3cret, pd-3:2379"
    sections = {"source": {"pd-urls": pds}, "lake": {"path": lake}}
    place = ReplicationFile(Path("/r/orders.toml"), Replication.model_validate({"name": "orders", **sections}))
    doc = str(build_empty_dag(place, "sync", summary="", doc="", params={}).doc_md)
    assert "- source: PD at pd-1:2379, pd-2:2379, pd-3:2379\n" in doc
    assert f"- lake: `{shown}`\n" in doc
    assert "et@" not in doc
    assert "s3cret" not in doc
