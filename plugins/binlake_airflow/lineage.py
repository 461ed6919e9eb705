"""What the stages of a window read and wrote, as OpenLineage datasets with the names that its specification gives.

Names come from the configuration and from what the stages told: nothing is asked for them. Only OpenLineage's provider
calls this module, so its packages need not be there for anybody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset, OutputDataset
from openlineage.client.facet_v2 import dataset_version_dataset, output_statistics_output_dataset, storage_dataset

from binlake.config import Replication
from binlake.lake.paths import LakePaths
from binlake_airflow import addresses
from binlake_airflow.jobs import CHANGED

Names = Iterable[Sequence[str]]
"""(db, table) each."""

_LAKE: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "land": ((), ("binlog", "schema_change")),
    "merge": (("binlog", "schema_change"), ("mutation", "ddl")),
    "compact": (("mutation", "ddl"), ("change",)),
    "convert": (("change", "mutation", "ddl"), ("statement",)),
    "finalize": (("statement",), ()),
    "mirror": (("mutation", "ddl"), ()),
}
"""By stage: the lake's tables that it reads, and those that it writes."""
_COUNTS = {"merge": "mutation", "compact": "change"}
"""The table whose rows a stage counts as its own."""
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}
"""As storages are called in names of datasets, where Spark calls them otherwise."""


def of_stages(replication: Replication, results: Sequence[Mapping[str, Any]], changed: Names) -> OperatorLineage:
    """Of the StageResults of one task; `changed`: the target's tables that the SQL sink's window changed."""
    names, tables = _Names(replication), list(changed)
    read: list[Dataset] = []
    written: list[Dataset] = []
    for result in results:
        if result["state"] != "done":
            continue
        stage, hi = str(result["stage"]), str(result["hi"])
        inputs, outputs = _LAKE.get(stage, ((), ()))
        rows = {_COUNTS.get(stage, ""): int(result["rows"])}
        read += [names.lake(name) for name in inputs]
        written += [names.lake(name, rows.get(name)) for name in outputs]
        if stage == "land":
            read.append(names.binlog())
        elif stage == "finalize":
            read += names.source(tables, hi)
            written += [names.target(db, table, hi) for db, table in tables]
        elif stage == "mirror":
            mirrored = result["detail"].get(CHANGED, ())
            read += names.source(mirrored, hi)
            written += [names.mirror(db, table, hi) for db, table in mirrored]
    outputs_by_name = _once(written)
    inputs_by_name = {name: one for name, one in _once(read).items() if name not in outputs_by_name}
    return OperatorLineage(inputs=list(inputs_by_name.values()), outputs=list(outputs_by_name.values()))


class _Names:
    """The datasets of one replication."""

    def __init__(self, replication: Replication) -> None:
        self._paths = LakePaths.of(replication)
        self._routed = bool(replication.routes)
        self._source = _source_of(replication)
        target = replication.target
        # TiDB and MariaDB are named as what they are spoken to as.
        self._target = f"mysql://{target.host}:{target.port}" if target is not None else ""

    def binlog(self) -> Dataset:
        """All that the pumps of the source keep."""
        return Dataset(self._source, "binlog")

    def source(self, tables: Names, commit_ts: str) -> list[Dataset]:
        """The source's tables behind those of the target; none where routes lead several into one."""
        return [] if self._routed else [_versioned(self._source, f"{db}.{table}", commit_ts) for db, table in tables]

    def target(self, db: str, table: str, commit_ts: str) -> Dataset:
        """A table of the SQL target."""
        return _versioned(self._target, f"{db}.{table}", commit_ts)

    def lake(self, table: str, rows: int | None = None) -> Dataset:
        """A table of the lake; `rows`: written to it."""
        place = _place(self._paths.table(table))
        if rows is None:
            return Dataset(*place, facets=_delta())
        counted = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rows)
        return OutputDataset(*place, facets=_delta(), outputFacets={"outputStatistics": counted})

    def mirror(self, db: str, table: str, commit_ts: str) -> Dataset:
        """The mirror of a table."""
        made = _versioned(*_place(self._paths.mirror(db, table)), commit_ts)
        made.facets.update(_delta())
        return made


def _source_of(replication: Replication) -> str:
    """The specification knows no TiDB: as MySQL where we speak SQL with it, else by cluster, else by its PD."""
    source = replication.source
    if source.sql is not None:
        return f"mysql://{source.sql.host}:{source.sql.port}"
    return f"tidb://{source.cluster_id or addresses.server(source.pd_urls[0])}"


def _place(path: str) -> tuple[str, str]:
    """Namespace and name of a folder or URI; without the password that a URI may hold."""
    if "://" not in path:
        return "file", path
    scheme, authority, name = addresses.split(path)
    return f"{_SCHEMES.get(scheme, scheme)}://{authority}", name if scheme == "hdfs" else name.lstrip("/")


def _versioned(namespace: str, name: str, commit_ts: str) -> Dataset:
    version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=commit_ts)
    return Dataset(namespace, name, facets={"version": version})


def _delta() -> dict[str, Any]:
    return {"storage": storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")}


def _once(datasets: Iterable[Dataset]) -> dict[tuple[str, str], Dataset]:
    return {(one.namespace, one.name): one for one in datasets}
