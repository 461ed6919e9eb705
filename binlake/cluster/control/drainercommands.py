"""Commands for consumers: `binlake pause-drainer`, `offline-drainer`, `resume-drainer`, `generate_meta`.

An original drainer is asked over HTTP. A replication of Binlake has no process: the state of its entry is what plan
obeys (binlake/cluster/node.py, S0-74). `generate_meta` writes the savepoint from which a new original drainer starts
(tidb-binlog 3.4).
"""

from __future__ import annotations

import abc
import argparse
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlake import tso
from binlake.cluster.control.commands import NodeAction, add_cluster, add_node, add_option, open_pd, open_registry, warn
from binlake.cluster.node import OFFLINE, PAUSED, RESTING, is_name_of_consumer
from binlake.cluster.placement import NodeRegistry, NodeStatus
from binlake.cluster.placement.registry import DRAINERS, build_unknown_node_error
from binlake.errors import ConfigError, Permanent


class _DrainerAction(NodeAction, abc.ABC):
    """Asks a drainer, or writes what a replication is asked."""

    def require_node(self, registry: NodeRegistry, node_id: str) -> NodeStatus:
        """The consumer's entry. Raises Permanent if it is not in the registry."""
        return _require_consumer(registry, node_id)

    def apply(self, registry: NodeRegistry, node: NodeStatus, args: argparse.Namespace) -> None:
        """Ask a drainer; write the state of a replication."""
        if _is_replication(registry, node):
            self._write(registry, node.node_id)
        else:
            super().apply(registry, node, args)

    @abc.abstractmethod
    def _write(self, registry: NodeRegistry, node_id: str) -> None:
        """Write the state of a replication, and say what follows."""


class PauseDrainerCommand(_DrainerAction):
    """`binlake pause-drainer`."""

    examples = ("binlake pause-drainer --node-id binlake-orders --pd-urls http://10.0.0.5:2379",)
    help = "stop a drainer that will be started again, or let no window of a replication start until resume-drainer"
    action = "pause"

    def _write(self, registry: NodeRegistry, node_id: str) -> None:
        before = registry.pause_replication(node_id)
        print(
            f"drainer {node_id}: {before.state} -> {PAUSED}; a run that has planned its window finishes it, no other "
            f"window starts until `binlake resume-drainer -node-id {node_id}`; pumps keep what has not landed"
        )


class OfflineDrainerCommand(_DrainerAction):
    """`binlake offline-drainer`."""

    examples = ("binlake offline-drainer --node-id binlake-orders --pd-urls http://10.0.0.5:2379",)
    help = "remove a consumer permanently: pumps no longer wait for it"
    action = "close"

    def _write(self, registry: NodeRegistry, node_id: str) -> None:
        before = registry.set_drainer_state(node_id, OFFLINE)
        print(
            f"drainer {node_id}: {before.state} -> {OFFLINE}; pumps no longer wait for it, and no window of it starts"
        )


class ResumeDrainerCommand:
    """`binlake resume-drainer`."""

    examples = ("binlake resume-drainer --node-id binlake-orders --pd-urls http://10.0.0.5:2379",)
    help = "let the windows of a replication start again after pause-drainer or offline-drainer"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the replication's entry."""
        add_node(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Rewrite the state. Raises Permanent for an original drainer, which resumes when its process is started."""
        with open_registry(args) as registry:
            node = _require_consumer(registry, args.node_id)
            if not _is_replication(registry, node):
                raise Permanent(
                    "this consumer is not a replication of Binlake",
                    where={"drainer": node.node_id, "addr": node.host},
                    hint="start the drainer's process: it registers itself as online",
                )
            before = registry.set_drainer_state(node.node_id, RESTING)
        print(f"drainer {node.node_id}: {before.state} -> {RESTING}, as between two windows: the next run plans one")
        if before.state == OFFLINE:
            warn(
                f"pumps did not wait for {node.node_id} (it is at {before.max_commit_ts}): if one has deleted binlogs "
                "after that position, the next plan is blocked and names the pump"
            )
        return 0


def _require_consumer(registry: NodeRegistry, node_id: str) -> NodeStatus:
    entry = registry.find_drainer(node_id)
    if entry is None:
        raise build_unknown_node_error(DRAINERS + node_id)
    return entry.status


def _is_replication(registry: NodeRegistry, node: NodeStatus) -> bool:
    """Whether a consumer is a replication: by its name, or its address: none, or that of a pump that answers for it."""
    if is_name_of_consumer(node.node_id) or not node.host:
        return True
    return any(pump.host == node.host for pump in registry.list_pumps())


class GenerateMetaCommand:
    """Writes `<data-dir>/savepoint` with the newest timestamp of PD."""

    examples = ("binlake generate_meta --data-dir /var/lib/drainer --pd-urls http://10.0.0.5:2379",)
    help = "write a savepoint file with PD's newest timestamp"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare PD, the folder, and a time zone for the shown time."""
        add_cluster(parser)
        add_option(
            parser, "data-dir", type=Path, default=Path("binlog_position"), help="folder of the file `savepoint`"
        )
        add_option(
            parser, "time-zone", default="", metavar="ZONE", help="also write the time in this zone, such as Asia/Tokyo"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Write the savepoint, and print it."""
        with open_pd(args) as pd:
            ts = pd.fetch_ts()
        lines = [f"commitTS = {ts}"]
        if args.time_zone:
            lines.append(f"# {tso.to_datetime(ts).astimezone(_parse_zone(args.time_zone)).isoformat(' ')}")
        args.data_dir.mkdir(parents=True, exist_ok=True)
        (args.data_dir / "savepoint").write_text("\n".join(lines) + "\n")
        print("\n".join(lines))
        return 0


def _parse_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(
            "unknown time zone", where={"time-zone": name}, hint="use a name such as Asia/Tokyo or UTC"
        ) from None
