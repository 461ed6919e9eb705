"""What the Grafana boards show. Each query asks for a metric that a service exports: tests compare the two.

The boards need Prometheus with the pumps' and feeders' `/metrics`, and for replications statsd_exporter with
`deploy/prometheus/statsd-mapping.yml` (docs/operate/alerts.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COLUMNS, _HEIGHT = 3, 8
_WIDTH = 24 // _COLUMNS  # of Grafana's 24 columns
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One chart: `queries` as (PromQL, legend); `unit`: Grafana's name of it; `red`: alarming from here."""

    title: str
    text: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    red: float | None = None


@dataclass(frozen=True)
class Board:
    """One board; `label`: the label that its viewers choose values of, and a metric that has it."""

    name: str
    title: str
    label: tuple[str, str]
    panels: Sequence[Panel]


_PUMP = 'instance=~"$instance"'
_FEEDER = 'source=~"$source"'
_REPLICATION = 'replication=~"$replication"'
_STORE = "binlog_pump_storage"
_FEED_TIME = "binlake_feed_timestamp_seconds"


def _take_quantile(share: float, metric: str, labels: str) -> str:
    return f"histogram_quantile({share}, sum by (le, instance) (rate({metric}_bucket{{{labels}}}[5m])))"


PUMP = Board(
    "pump", "Binlake pumps", ("instance", f"{_STORE}_max_commit_ts"),
    (
        Panel("Watermark, behind the clock", "No window can pass the oldest one. It stands while a prewrite has no"
              " outcome, or while PD does not answer.",
              [(f"time() - {_STORE}_max_commit_ts{{{_PUMP}}} / 1000", "{{instance}}")], "s", 300),
        Panel("Free space of the disk", "Below stop-write-at-available-space (10 GiB) a pump refuses writes.",
              [(f'{_STORE}_storage_size_bytes{{{_PUMP}, type="available"}}', "{{instance}}")], "bytes"),
        Panel("Refused writes and failures of the storage", "Writers choose another pump, or wait.",
              [(f"rate(binlog_pump_loss_binlog_count{{{_PUMP}}}[5m])", "{{instance}} refused"),
               (f"rate({_STORE}_error_count{{{_PUMP}}}[5m])", "{{instance}} {{type}}")], "ops", 0.001),
        Panel("Writes a second", "Prewrites, commits and rollbacks that were acknowledged.",
              [(f'rate(binlog_pump_rpc_duration_seconds_count{{{_PUMP}, method="WriteBinlog", label="succ"}}[5m])',
                "{{instance}}")], "ops"),
        Panel("A write takes", "From the call to its acknowledgement: half of the writes, and all but a hundredth.",
              [(_take_quantile(share, "binlog_pump_rpc_duration_seconds", f'{_PUMP}, method="WriteBinlog"'),
                f"{{{{instance}}}} {name}") for share, name in ((0.5, "median"), (0.99, "99 %"))], "s", 1),
        Panel("A sync of the disk takes", "fdatasync of a batch, all but a hundredth.",
              [(_take_quantile(0.99, f"{_STORE}_write_binlog_duration_time", f'{_PUMP}, type="fsync"'),
                "{{instance}}")], "s", 1),
        Panel("Bytes a second", "Written to the value log.",
              [(f'rate({_STORE}_write_binlog_size_sum{{{_PUMP}, type="batch"}}[5m])', "{{instance}}")], "Bps"),
        Panel("Prewrites without an outcome", "Their commit or rollback has not arrived, and the source is asked.",
              [(f"binlake_pump_unmatched_prewrites{{{_PUMP}}}", "{{instance}}")]),
        Panel("Questions to the source", "About prewrites that wait for their outcome.",
              [(f"rate({_STORE}_query_tikv_count{{{_PUMP}}}[5m])", "{{instance}}")], "ops"),
        Panel("Collected up to, behind the clock", "Binlogs older than this are removed, once every consumer has them.",
              [(f"time() - {_STORE}_gc_ts{{{_PUMP}}} / 1000", "{{instance}}")], "s"),
        Panel("What must not happen", "Commits that came too late, contradicted rollbacks, timestamps from the future:"
              " docs/understand/pump.md.",
              [(f"increase(binlake_pump_{name}_total{{{_PUMP}}}[1h])", f"{{{{instance}}}} {name}") for name in
               ("late_commits", "early_commits", "contradicted_rollbacks", "future_timestamps")], "short", 1),
        Panel("Score", "Free capacity, 0 to 100; writers prefer a high one.",
              [(f"binlake_pump_score{{{_PUMP}}}", "{{instance}}")]),
    ),
)  # fmt: skip

FEEDER = Board(
    "feeder", "Binlake feeders", ("source", "binlake_feeder_up"),
    (
        Panel("Makes progress", "1 while nothing blocks the source; `binlake feeder status` names the reason.",
              [(f"binlake_feeder_up{{{_FEEDER}}}", "{{source}}")]),
        Panel("Behind the source", "The oldest transaction that was read and is not published.",
              [(f"binlake_feeder_lag_seconds{{{_FEEDER}}}", "{{source}}")], "s", 300),
        Panel("Last transaction, ago", "The commit of the last published one: long for a quiet source, too.",
              [(f"time() - binlake_feeder_last_transaction_seconds{{{_FEEDER}}}", "{{source}}")], "s"),
        Panel("Transactions a second", "Published, with rows.",
              [(f"rate(binlake_feeder_transactions_total{{{_FEEDER}}}[5m])", "{{source}}")], "ops"),
        Panel("Rows a second", "Of published transactions.",
              [(f"rate(binlake_feeder_rows_total{{{_FEEDER}}}[5m])", "{{source}}")], "ops"),
        Panel("Bytes of the log a second", "Of the source's log, published.",
              [(f"rate(binlake_feeder_log_bytes_total{{{_FEEDER}}}[5m])", "{{source}}")], "Bps"),
        Panel("Batches with unsent commits", "Their pumps do not take them; the watermark stands meanwhile.",
              [(f"binlake_feeder_unsent_batches{{{_FEEDER}}}", "{{source}}")]),
        Panel("Calls made again", "To PD and pumps.",
              [(f"rate(binlake_feeder_retries_total{{{_FEEDER}}}[5m])", "{{source}}")], "ops"),
        Panel("Connections to the source", "A new one each time the connection was lost.",
              [(f"increase(binlake_feeder_connections_total{{{_FEEDER}}}[1h])", "{{source}}")]),
        Panel("Changes of the schema", "Published in the last hour.",
              [(f"increase(binlake_feeder_ddls_total{{{_FEEDER}}}[1h])", "{{source}}")]),
        Panel("Full load, done", "Rows read, of those that the source estimates.",
              [(f"binlake_feeder_load_rows{{{_FEEDER}}} / binlake_feeder_load_rows_estimated{{{_FEEDER}}}",
                "{{source}}")], "percentunit"),
        Panel("Full load, rows a second", "Since it was last begun or continued.",
              [(f"binlake_feeder_load_rows_per_second{{{_FEEDER}}}", "{{source}}")], "ops"),
        Panel("Full load, time left", "Until all rows are read, at the present rate.",
              [(f"binlake_feeder_load_seconds_left{{{_FEEDER}}}", "{{source}}")], "s"),
        Panel("Left out", "Transactions without anything to publish, a second.",
              [(f"rate(binlake_feeder_left_out_total{{{_FEEDER}}}[5m])", "{{source}}")], "ops"),
        Panel("Replaced texts", "Bytes that are no character became question marks, by table, in the last hour.",
              [("increase(binlake_feeder_replaced_texts_total[1h])", "{{table}}")], "short", 1),
    ),
)  # fmt: skip

REPLICATION = Board(
    "replication", "Binlake replications", ("replication", "binlake_landed_timestamp_seconds"),
    (
        *(Panel(title, text, [(f"time() - max by (replication) (last_over_time({metric}{{{_REPLICATION}}}[1d]))",
                               "{{replication}}")], "s", red) for title, text, metric, red in (
            ("Target, behind the clock", "Grows even if nothing runs.", "binlake_checkpoint_timestamp_seconds", 3600.0),
            ("Lake, behind the clock", "Pumps keep binlogs for a limited time.", "binlake_landed_timestamp_seconds",
             900.0),
            ("Mirrors, behind the clock", "Grows even if nothing runs.", "binlake_mirror_timestamp_seconds", 3600.0),
        )),
        Panel("Behind the source when a window ended", "By PD's clock.",
              [(f"binlake_lag_seconds{{{_REPLICATION}}}", "{{replication}} target"),
               (f"binlake_landed_lag_seconds{{{_REPLICATION}}}", "{{replication}} lake"),
               (f"binlake_mirror_lag_seconds{{{_REPLICATION}}}", "{{replication}} mirrors")], "s", 600),
        Panel("Blocked", "1 while a pump blocks the next window; its page names the pump.",
              [(f"binlake_blocked{{{_REPLICATION}}}", "{{replication}}")], "short", 1),
        Panel("Tables set aside", "There the target differs from the source.",
              [(f"binlake_set_aside{{{_REPLICATION}}}", "{{replication}}")], "short", 1),
        Panel("Transactions a second", "Landed.",
              [(f'rate(binlake_stage_rows_total{{{_REPLICATION}, stage="land"}}[10m])', "{{replication}}")], "ops"),
        Panel("Rows a second, by stage", "What each stage has written.",
              [(f"rate(binlake_stage_rows_total{{{_REPLICATION}}}[10m])", "{{replication}} {{stage}}")], "ops"),
        Panel("A stage takes", "All but a tenth of its runs.",
              [(f'binlake_stage_seconds{{{_REPLICATION}, quantile="0.9"}}', "{{replication}} {{stage}}")], "s"),
        Panel("Validation", "Rows that differ, and rows that are not decided yet.",
              [(f"binlake_validation_errors{{{_REPLICATION}}}", "{{replication}} errors"),
               (f"binlake_validation_pending{{{_REPLICATION}}}", "{{replication}} pending")], "short", 1),
        Panel("Waits for a DDL of another shard", "Commit time of the oldest rows that wait.",
              [(f"binlake_shard_lock_seconds{{{_REPLICATION}}}", "{{replication}}")], "s", 3600),
        Panel("State of feeds", "0 normal, 1 stopped, 2 error, 3 finished, 4 removed.",
              [(f"binlake_feed_state{{{_REPLICATION}}}", "{{replication}} {{feed}}")], "short", 2),
        Panel("Feeds, behind the clock", "The last change that was published.",
              [(f"time() - max by (replication, feed) (last_over_time({_FEED_TIME}{{{_REPLICATION}}}[1d]))",
                "{{replication}} {{feed}}")], "s", 3600),
        Panel("Messages a second", "Published by feeds.",
              [(f"rate(binlake_feed_messages_total{{{_REPLICATION}}}[10m])", "{{replication}} {{feed}}")], "ops"),
        Panel("Bytes of messages a second", "Published by feeds.",
              [(f"rate(binlake_feed_bytes_total{{{_REPLICATION}}}[10m])", "{{replication}} {{feed}}")], "Bps"),
    ),
)  # fmt: skip

BOARDS = (PUMP, FEEDER, REPLICATION)


def list_queries(board: Board) -> dict[str, str]:
    """The PromQL of each chart, without the choice of the viewer; by title and number."""
    label = board.label[0]
    return {
        f"{panel.title} {number}": query.replace(f'{label}=~"${label}"', "").replace("{, ", "{").replace("{}", "")
        for panel in board.panels
        for number, (query, _) in enumerate(panel.queries, 1)
    }


def write_boards(folder: Path) -> list[Path]:
    """Write each board as Grafana imports it; returns the files."""
    paths = []
    for board in BOARDS:
        paths.append(folder / f"{board.name}.json")
        paths[-1].write_text(render_board(board), encoding="utf-8")
    return paths


def render_board(board: Board) -> str:
    """The JSON of one board."""
    values = {
        "uid": f"binlake-{board.name}",
        "title": board.title,
        "tags": ["binlake"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_build_source_choice(), _build_label_choice(*board.label)]},
        "panels": [_build_panel(number, panel) for number, panel in enumerate(board.panels)],
    }
    return json.dumps(values, indent=1) + "\n"


def _build_source_choice() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _build_label_choice(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label, "type": "query", "label": label.capitalize(), "datasource": _SOURCE, "refresh": 2,
        "query": {"query": f"label_values({metric}, {label})", "refId": label}, "multi": True, "includeAll": True,
        "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _build_panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red is not None:
        steps.append({"color": "red", "value": panel.red})
    custom = {"lineWidth": 1, "fillOpacity": 10, "thresholdsStyle": {"mode": "line" if panel.red else "off"}}
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}, "custom": custom}
    return {
        "id": number + 1, "type": "timeseries", "title": panel.title, "description": panel.text, "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip
