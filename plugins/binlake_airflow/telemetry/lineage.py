"""What stages and commands read and wrote, as OpenLineage datasets, according to their reports.

Names come from the configuration, columns from a stage's report; no server is asked. Only OpenLineage's provider calls
this module, in a separate process; it logs an error here, and nothing else fails. So OpenLineage's packages are needed
nowhere else, and Spark and Arrow are not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset, OutputDataset
from openlineage.client.facet_v2 import (
    BaseFacet,
    column_lineage_dataset,
    dataset_version_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    storage_dataset,
)

from binlake.common.filestore import StoreAddress
from binlake.config import Replication
from binlake.config.sinkuri import parse_store_address
from binlake.lake.paths import LakePaths
from binlake.pipeline import BY_NAME, FEED, STAGES
from binlake.window.lineage import LINEAGE, MOST_TABLES, KnownTable, LineageTable, limit_tables
from binlake_airflow.jobs import CHANGED, find_feed_of_result
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


Names = Iterable[Sequence[str]]
"""(db, table) pairs."""
Result = Mapping[str, Any]
Flow: TypeAlias = "OperatorLineage[Dataset, BaseFacet]"
"""A StageResult as a stage or command wrote it."""


class _Flow:
    """Collects what one task read and wrote."""

    def __init__(self, replication: Replication) -> None:
        self.names = Datasets(replication)
        self.read: list[Dataset] = []
        self.written: list[Dataset] = []

    def add_lake_tables(
        self, read: Iterable[str], written: Iterable[str] = (), rows: Mapping[str, int] | None = None
    ) -> None:
        """Add tables of the lake; `rows`: number of rows written, by table."""
        self.read += [self.names.build_lake_table(name) for name in read]
        self.written += [self.names.build_lake_table(name, (rows or {}).get(name)) for name in written]

    def build_lineage(self) -> Flow:
        """Each dataset once; a dataset that was read and also written counts as written."""
        outputs = _without_duplicates(self.written)
        inputs = {name: dataset for name, dataset in _without_duplicates(self.read).items() if name not in outputs}
        return OperatorLineage(inputs=list(inputs.values()), outputs=list(outputs.values()))


def build_lineage_of_stages(
    replication: Replication, results: Sequence[Result], changed: Names = (), *, from_relay: bool = False
) -> Flow:
    """The lineage of the StageResults of one task.

    `changed`: the target's tables that the SQL sink's window changed, if finalize did not report them; `from_relay`:
    finalize took its statements from relay files.
    """
    flow = _Flow(replication)
    done = [result for result in results if result["state"] == "done"]
    for result in done:
        stage = BY_NAME.get(str(result["stage"]))
        if stage is not None and not from_relay:
            feed = find_feed_of_result(result)
            read, written = (_list_tables_of_feed(names, feed) for names in (stage.reads, stage.writes))
            (counts,) = _list_tables_of_feed((stage.counts,), feed)
            flow.add_lake_tables(read, written, {counts: int(result["rows"])})
        if result["stage"] == "publish":
            flow.written += flow.names.build_topics(result["detail"]["feed"], result["detail"].get("topics", ()))
        if result["stage"] == "land":
            flow.read.append(flow.names.build_binlog())
    if from_relay and done:
        flow.read.append(flow.names.build_relay())
    names = list(changed)
    _add_copies(
        flow,
        flow.names.build_target_table,
        _select_results_of_stage(done, "finalize"),
        lambda _: _add_by_name(replication, names),
    )
    _add_copies(
        flow,
        flow.names.build_mirror,
        _select_results_of_stage(done, "mirror"),
        lambda r: _add_by_name(replication, r["detail"].get(CHANGED, ())),
    )
    return flow.build_lineage()


def _list_tables_of_feed(tables: Sequence[str], feed: str) -> list[str]:
    """Table names in the lake: each feed has its own table of messages."""
    return [f"{table}/{feed}" if table == FEED else table for table in tables]


def _select_results_of_stage(results: Sequence[Result], stage: str) -> list[Result]:
    return [result for result in results if result["stage"] == stage]


def _add_copies(
    flow: _Flow,
    place: Callable[[LineageTable, str], Dataset],
    results: Sequence[Result],
    named: Callable[[Result], list[LineageTable]],
) -> None:
    """Add the tables that a sink wrote, each as its last window left it, and the source tables behind them.

    `named`: returns the tables of a result that has only names.
    """
    copies = [(copy, result) for result in results for copy in _list_tables_of_side(result, "wrote")]
    copies = copies or [(copy, result) for result in results for copy in named(result)]
    newest = {(copy.table.db, copy.table.table): (copy, str(result["hi"])) for copy, result in copies}
    for copy in limit_tables([copy for copy, _ in newest.values()]):
        commit_ts = newest[copy.table.db, copy.table.table][1]
        flow.read += [flow.names.build_source_table(source, commit_ts) for source in copy.sources]
        flow.written.append(place(copy, commit_ts))


def _add_by_name(replication: Replication, names: Names) -> list[LineageTable]:
    """Tables of which only the names are known; if there are routes, not even their source tables."""
    tables = [KnownTable(db, table) for db, table in names]
    return [LineageTable(table, (), () if replication.routes else (table,)) for table in tables]


def build_lineage_of_command(
    command: str, replication: Replication, asked: Mapping[str, Any], printed: Any, into: Replication | None = None
) -> Flow:
    """The lineage of a command that returned `printed` for the params `asked`; `into`: whose target it wrote to."""
    flow = _Flow(replication)
    if command == "recover":
        relayed = printed[-1]["detail"].get("source") == "relay"
        return build_lineage_of_stages(replication, printed[:-1], from_relay=relayed)
    if command == "restore" or (command == "backfill" and into is not None):
        target = replication.target if into is None else into.target
        return build_lineage_of_stages(replication.model_copy(update={"target": target}), printed)
    if command == "bootstrap":
        return flow.build_lineage()  # empty: the windows move the rows, and report them
    if command == "audit":
        _add_audit(flow, asked, printed)
    elif command == "maintain":
        _add_maintain(flow, printed or ())
    else:
        for result in printed:
            _OF[result["stage"]](flow, result)
    return flow.build_lineage()


def _add_audit(flow: _Flow, asked: Mapping[str, Any], printed: Any) -> None:
    if asked["what"] == "transaction":
        flow.add_lake_tables(("binlog", "mutation", "ddl"))
        return
    flow.add_lake_tables(("mutation",))
    mirror = printed.get("mirror", {}) if asked["what"] == "table" and printed else {}
    # A version below 0 means that the table has no mirror yet.
    if mirror.get("delta_version", -1) >= 0:
        flow.read.append(
            flow.names.build_mirror(LineageTable(KnownTable(mirror["db"], mirror["table"])), str(mirror["hi"]))
        )


def _add_maintain(flow: _Flow, tables: Sequence[Mapping[str, Any]]) -> None:
    """Tables whose files were joined or dropped, or whose rows were deleted, count as written."""
    for one in tables:
        if one["table"] == "mirror":
            mirrors = [LineageTable(KnownTable(db, table)) for db, table in one.get("mirrors", ())]
            flow.written += [flow.names.build_mirror(one) for one in mirrors if len(mirrors) <= MOST_TABLES]
        elif one["joined"] or one["dropped"] or one["windows"]:
            flow.add_lake_tables((), (one["table"],))


def _add_rebuild(flow: _Flow, result: Result) -> None:
    counts = result["detail"]["rows_before_and_after"]
    for stage in STAGES:
        if stage.name != "land" and stage.writes and set(stage.writes) <= set(counts):
            flow.add_lake_tables(stage.reads, stage.writes)


def _add_verify(flow: _Flow, result: Result) -> None:
    at = str(result["hi"])
    for table in _list_tables_of_side(result, "read"):
        flow.read.append(flow.names.build_target_table(table, at))
        if result["detail"]["against"] == "source":
            flow.read += [flow.names.build_source_table(source, at) for source in table.sources]
        else:
            flow.read.append(flow.names.build_mirror(table, at))
            flow.add_lake_tables(("mutation",))


def _add_repair(flow: _Flow, result: Result) -> None:
    at = str(result["detail"].get("checkpoint", result["hi"]))
    for table in _list_tables_of_side(result, "read"):
        flow.add_lake_tables(("mutation",))
        flow.read += [flow.names.build_mirror(table, at), flow.names.build_target_table(table, at)]
    flow.written += [flow.names.build_target_table(table, at) for table in _list_tables_of_side(result, "wrote")]


def _add_rollback(flow: _Flow, result: Result) -> None:
    """The tables are those of the side written to; they have no version, because they match no commit_ts."""
    flow.add_lake_tables(("mutation",))
    for one in _list_tables_of_side(result, "wrote"):
        at_source = result["detail"]["write_to"] == "source"
        flow.written.append(
            flow.names.build_source_table(one.table) if at_source else flow.names.build_target_table(one)
        )


def _add_emit(flow: _Flow, _result: Result) -> None:
    flow.add_lake_tables(("mutation", "ddl"))


_OF = {
    "rebuild": _add_rebuild,
    "verify": _add_verify,
    "repair": _add_repair,
    "backfill": _add_repair,
    "rollback": _add_rollback,
    "emit": _add_emit,
}
"""Lineage functions by the stage that a command's result names."""


def _list_tables_of_side(result: Result, side: str) -> list[LineageTable]:
    return [LineageTable.from_dict(raw) for raw in result["detail"].get(LINEAGE, {}).get(side, ())]


def _without_duplicates(datasets: Iterable[Dataset]) -> dict[tuple[str, str], Dataset]:
    """Datasets by name; if one appears with and without columns, the one with columns."""
    by_name: dict[tuple[str, str], Dataset] = {}
    for one in datasets:
        if (one.namespace, one.name) not in by_name or "schema" in (one.facets or {}):
            by_name[one.namespace, one.name] = one
    return by_name
