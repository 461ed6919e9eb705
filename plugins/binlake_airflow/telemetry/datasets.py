"""Datasets and facets of OpenLineage's specification for source, target, lake and feeds of one replication.

Names come from the configuration, columns from a stage's report; no server is asked. Only `lineage` imports this
module, so OpenLineage's packages are needed nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from openlineage.client.event_v2 import Dataset, OutputDataset
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    dataset_version_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    storage_dataset,
)

from binlake.base.filestore import StoreAddress
from binlake.config import Replication
from binlake.config.sinkuri import parse_store_address
from binlake.lake.paths import LakePaths
from binlake.window.lineage import KnownTable, LineageTable
from binlake_airflow.telemetry import addresses

_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}
"""Storage schemes in dataset names that differ from Spark's."""


class Datasets:
    """The datasets of one replication."""

    def __init__(self, replication: Replication) -> None:
        self._paths = LakePaths.of(replication)
        self._source = _derive_source_namespace(replication)
        self._feeds = replication.feed
        target = replication.target
        # TiDB and MariaDB are named by their protocol.
        self._target = f"mysql://{target.host}:{target.port}" if target is not None else ""
        self._relay = replication.relay.log_dir and _build_storage_uri(parse_store_address(replication.relay.log_dir))

    def build_binlog(self) -> Dataset:
        """All binlogs that the source's pumps store."""
        return Dataset(self._source, "binlog")

    def build_relay(self) -> Dataset:
        """The folder of relay files."""
        return Dataset(*_derive_storage_name(self._relay))

    def build_source_table(self, table: KnownTable, commit_ts: str = "") -> Dataset:
        """A table of the source."""
        return self._build_table(self._source, table, commit_ts)

    def build_target_table(self, copy: LineageTable, commit_ts: str = "") -> Dataset:
        """A table of the SQL target."""
        return self._add_column_lineage(self._build_table(self._target, copy.table, commit_ts), copy)

    def build_mirror(self, copy: LineageTable, commit_ts: str = "") -> Dataset:
        """The mirror of a table."""
        place = _derive_storage_name(self._paths.locate_mirror(copy.table.db, copy.table.table))
        made = Dataset(
            *place,
            facets={**_build_version_facet(commit_ts), **_build_schema_facet(copy.table), **_build_storage_facet()},
        )
        return self._add_column_lineage(made, copy)

    def build_topics(self, feed: str, topics: Iterable[str]) -> list[Dataset]:
        """The datasets that a feed wrote to: topics of its first broker, or its folder."""
        sink = next((one.sink for one in self._feeds if one.name == feed), None)
        if sink is None:
            return []
        if sink.kafka is None:
            return (
                [Dataset(*_derive_storage_name(_build_storage_uri(sink.storage)))] if sink.storage is not None else []
            )
        return [Dataset(f"kafka://{sink.kafka.brokers[0]}", topic) for topic in topics]

    def build_lake_table(self, table: str, rows: int | None = None) -> Dataset:
        """A table of the lake; `rows`: the number of rows written to it."""
        place = _derive_storage_name(self._paths.locate_table(table))
        if rows is None:
            return Dataset(*place, facets=_build_storage_facet())
        counted = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rows)
        return OutputDataset(*place, facets=_build_storage_facet(), outputFacets={"outputStatistics": counted})

    def _build_table(self, namespace: str, table: KnownTable, commit_ts: str) -> Dataset:
        facets = {**_build_version_facet(commit_ts), **_build_schema_facet(table)}
        return Dataset(namespace, f"{table.db}.{table.table}", facets=facets)

    def _add_column_lineage(self, made: Dataset, copy: LineageTable) -> Dataset:
        inputs = ((name, self._build_inputs(name, copy.sources)) for name in copy.copied)
        fields = {name: column_lineage_dataset.Fields(found) for name, found in inputs if found}
        if fields and made.facets is not None:
            made.facets["columnLineage"] = _ColumnLineage(fields)
        return made

    def _build_inputs(self, column: str, sources: Sequence[KnownTable]) -> list[column_lineage_dataset.InputField]:
        having = (source for source in sources if any(name == column for name, _ in source.columns))
        return [
            column_lineage_dataset.InputField(self._source, f"{one.db}.{one.table}", column, [_build_identity()])
            for one in having
        ]


# The provider searches everything it sends for secrets, at 5 ms of CPU a column; names and types contain none.


class _Schema(schema_dataset.SchemaDatasetFacet):
    _additional_skip_redact: ClassVar[list[str]] = ["fields"]


class _ColumnLineage(column_lineage_dataset.ColumnLineageDatasetFacet):
    _additional_skip_redact: ClassVar[list[str]] = ["fields", "dataset"]


def _build_identity() -> column_lineage_dataset.Transformation:
    return column_lineage_dataset.Transformation("DIRECT", "IDENTITY", "", masking=False)


def _build_schema_facet(table: KnownTable) -> dict[str, Any]:
    fields = [schema_dataset.SchemaDatasetFacetFields(name, kind or None) for name, kind in table.columns]
    return {"schema": _Schema(fields)} if fields else {}


def _build_version_facet(commit_ts: str) -> dict[str, Any]:
    version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=commit_ts)
    return {"version": version} if commit_ts else {}


def _build_storage_facet() -> dict[str, Any]:
    return {"storage": storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")}


def _derive_source_namespace(replication: Replication) -> str:
    """The source's namespace. The specification has none for TiDB: MySQL's if SQL is configured, else our own."""
    source = replication.source
    if source.sql is not None:
        return f"mysql://{source.sql.host}:{source.sql.port}"
    return f"tidb://{source.cluster_id or addresses.extract_host_and_port(source.pd_urls[0])}"


def _build_storage_uri(storage: StoreAddress) -> str:
    return storage.root if storage.scheme == "file" else f"{storage.scheme}://{storage.root}"


def _derive_storage_name(path: str) -> tuple[str, str]:
    """Namespace and name of a folder or URI, without a password in the URI."""
    if "://" not in path:
        return "file", path
    scheme, authority, name = addresses.split_uri(path)
    return f"{_SCHEMES.get(scheme, scheme)}://{authority}", name if scheme == "hdfs" else name.lstrip("/")
