"""`binlake pumps`, `drainers`, `update-pump`, `pause-pump`, …: one command for each of binlogctl (tidb-binlog 3.4).

Options may be written `--pd-urls` or, as in the original, `-pd-urls`.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from binlake.cluster.control.nodes import ask_node as ask
from binlake.cluster.control.nodes import (
    describe_node,
    format_table,
    format_time,
    format_unread_range,
    is_ahead,
    is_stale,
)
from binlake.cluster.placement import EtcdClient, NodeRegistry, NodeStatus, PdClient
from binlake.cluster.placement.registry import PUMPS, build_unknown_node_error
from binlake.cluster.pumpclient import PumpReader
from binlake.common.commandline import add_output
from binlake.errors import BinlakeError, ConfigError, SourceUnavailable, WireError
from binlake.rpc import Tls

_HEARTBEAT_S = 2.0
_PROBE_S = 2.0  # a pump that does not answer is recognised by its stale heartbeat


def add_option(parser: argparse.ArgumentParser, name: str, **options: object) -> None:
    """Declare `--name` and `-name`."""
    parser.add_argument(f"--{name}", f"-{name}", **options)  # type: ignore[arg-type]


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Declare `--pd-urls`, and `--ssl-ca`, `--ssl-cert`, `--ssl-key` for a cluster with TLS."""
    add_option(
        parser,
        "pd-urls",
        default="http://127.0.0.1:2379",
        metavar="URLS",
        help="addresses of PD, comma list (default %(default)s)",
    )
    for name, text in (
        ("ca", "CA of the cluster's certificates"),
        ("cert", "own certificate"),
        ("key", "its key"),
    ):
        add_option(parser, f"ssl-{name}", default="", metavar="FILE", help=f"{text}, PEM; for a cluster with TLS")


def build_tls(args: argparse.Namespace) -> Tls | None:
    """The given TLS files; None if there are none."""
    return Tls.of(args.ssl_ca, args.ssl_cert, args.ssl_key)


def add_token(parser: argparse.ArgumentParser) -> None:
    """Declare `--token-file`."""
    add_option(
        parser,
        "token-file",
        type=Path,
        default=os.environ.get("BINLAKE_PUMP_TOKEN_FILE") or None,
        metavar="FILE",
        help="the content of the pump's admin-token-file (default DATA_DIR/admin-token there); not needed with a client"
        " certificate. Also BINLAKE_PUMP_TOKEN_FILE",
    )


def read_token(args: argparse.Namespace) -> str:
    """The token in the given file; empty without a file. Raises ConfigError."""
    if args.token_file is None:
        return ""
    try:
        return str(args.token_file.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token cannot be read: {error}", where={"token-file": args.token_file}) from None


@contextlib.contextmanager
def open_registry(args: argparse.Namespace) -> Iterator[NodeRegistry]:
    """The registry of the cluster."""
    with contextlib.closing(EtcdClient(args.pd_urls.split(","), tls=build_tls(args))) as etcd:
        yield NodeRegistry(etcd)


@contextlib.contextmanager
def open_pd(args: argparse.Namespace) -> Iterator[PdClient]:
    """PD of the cluster."""
    with contextlib.closing(PdClient(args.pd_urls.split(","), tls=build_tls(args))) as pd:
        yield pd


class _Listing(abc.ABC):
    """Lists the nodes of one kind."""

    help = "list the nodes"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare PD, and what to show and how."""
        add_cluster(parser)
        add_option(parser, "show-offline-nodes", action="store_true", help="also show nodes that are offline")
        add_option(
            parser,
            "heartbeat-interval",
            type=float,
            default=_HEARTBEAT_S,
            metavar="SECONDS",
            help="the nodes' heartbeat interval: a node that has missed three heartbeats is shown as stale (default"
            " %(default)s)",
        )
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the nodes."""
        with open_registry(args) as registry, open_pd(args) as pd:
            nodes = self._list_nodes(registry)
            now, cluster = pd.fetch_ts(), pd.fetch_cluster_id()
        nodes = [node for node in nodes if args.show_offline_nodes or node.state != "offline"]
        stale = [is_stale(node, now, args.heartbeat_interval) for node in nodes]
        problems = self._read_problems(nodes, cluster, build_tls(args))
        if args.output == "json":
            shown = [describe_node(node, now, stale=old) for node, old in zip(nodes, stale, strict=True)]
            print(json.dumps([{**row, "problem": problems.get(row["nodeId"], "")} for row in shown]))
            return 0
        rows = [
            (
                node.node_id,
                node.host,
                node.state,
                str(node.max_commit_ts),
                format_time(node.update_ts),
                _format_remark(node, now, stale=old),
            )
            for node, old in zip(nodes, stale, strict=True)
        ]
        print(format_table(("NodeID", "Address", "State", "Max_Commit_Ts", "Update_Time", ""), rows))
        for node_id, problem in problems.items():
            print(f"{node_id}: {problem}")
        return 0

    def _read_problems(self, nodes: Sequence[NodeStatus], cluster_id: int, tls: Tls | None) -> dict[str, str]:
        """The problems that nodes report, by node id."""
        del nodes, cluster_id, tls
        return {}

    @abc.abstractmethod
    def _list_nodes(self, registry: NodeRegistry) -> Sequence[NodeStatus]:
        """The nodes of this command's kind."""


def _format_remark(node: NodeStatus, now: int, *, stale: bool) -> str:
    ahead = "from the future: `binlake pump set-aside`" if is_ahead(node, now) else ""
    return ", ".join(word for word in ("stale" * stale, ahead) if word)


def read_pump_problems(nodes: Sequence[NodeStatus], cluster_id: int, tls: Tls | None) -> dict[str, str]:
    """The problem that each answering pump reports, by node id; an original pump reports none."""
    problems = {}
    for node in nodes:
        if node.state in ("offline", "paused"):
            continue
        with contextlib.suppress(SourceUnavailable, WireError):
            problem = PumpReader(node.host, cluster_id, timeout_s=_PROBE_S, tls=tls).read_info().last_error
            problems.update({node.node_id: problem} if problem else {})
    return problems


class PumpsCommand(_Listing):
    """`binlake pumps`."""

    examples = ("binlake pumps --pd-urls http://10.0.0.5:2379 --show-offline-nodes",)
    help = "list the pumps of a cluster: address, state, watermark, last heartbeat, what blocks them"

    def _list_nodes(self, registry: NodeRegistry) -> Sequence[NodeStatus]:
        return registry.list_pumps()

    def _read_problems(self, nodes: Sequence[NodeStatus], cluster_id: int, tls: Tls | None) -> dict[str, str]:
        return read_pump_problems(nodes, cluster_id, tls)


class DrainersCommand(_Listing):
    """`binlake drainers`."""

    examples = ("binlake drainers --pd-urls http://10.0.0.5:2379",)
    help = "list the consumers of a cluster: address, state, position"

    def _list_nodes(self, registry: NodeRegistry) -> Sequence[NodeStatus]:
        return registry.list_drainers()


def add_node(parser: argparse.ArgumentParser) -> None:
    """Declare PD and `--node-id`."""
    add_cluster(parser)
    add_option(parser, "node-id", required=True, metavar="NODE", help="the node's name in the registry")


class _Update:
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the node and the state."""
        add_node(parser)
        add_option(parser, "state", required=True, help="online, pausing, paused, closing or offline")


class UpdatePumpCommand(_Update):
    """`binlake update-pump`."""

    examples = ("binlake update-pump --node-id pump-1 --state paused --pd-urls http://10.0.0.5:2379",)
    help = "rewrite a pump's state in the registry, regardless of what the pump does (unsafe: see the runbook)"

    def run(self, args: argparse.Namespace) -> int:
        """Rewrite the state, and warn about binlogs that get lost."""
        with open_registry(args) as registry, open_pd(args) as pd:
            before = registry.set_pump_state(args.node_id, args.state)
            lost = format_unread_range(before, registry.list_drainers()) if args.state == "offline" else ""
            alive = before.state == "online" and not is_stale(before, pd.fetch_ts(), _HEARTBEAT_S)
        print(f"pump {args.node_id}: {before.state} -> {args.state}")
        if lost:
            warn(
                f"offline by force. Binlogs of {args.node_id} that no consumer has read are lost unless it is started "
                f"again: {lost}. Windows wait for it until then, or until `binlake pump forget {args.node_id}`."
            )
        if alive:
            warn(
                f"{args.node_id} is alive and writes its own state at its next heartbeat: use pause-pump, offline-pump"
            )
        return 0


class UpdateDrainerCommand(_Update):
    """`binlake update-drainer`."""

    examples = ("binlake update-drainer --node-id drainer-1 --state offline --pd-urls http://10.0.0.5:2379",)
    help = "rewrite a consumer's state in the registry, regardless of what it does"

    def run(self, args: argparse.Namespace) -> int:
        """Rewrite the state."""
        with open_registry(args) as registry:
            before = registry.set_drainer_state(args.node_id, args.state)
        print(f"drainer {args.node_id}: {before.state} -> {args.state}")
        if args.state == "offline":
            warn(f"pumps that close no longer wait for {args.node_id} (it is at {before.max_commit_ts})")
        return 0


class NodeAction:
    """Asks a node over HTTP to pause or to go offline."""

    help = "ask a node to pause or to go offline"
    action = ""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the node."""
        add_node(parser)
        add_token(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Ask the node, which acts after it has answered."""
        with open_registry(args) as registry:
            node = self.require_node(registry, args.node_id)
            self.apply(registry, node, args)
        return 0

    def apply(self, registry: NodeRegistry, node: NodeStatus, args: argparse.Namespace) -> None:
        """Ask `node`."""
        del registry
        path = f"/state/{quote(node.node_id, safe='')}/{self.action}"
        ask("PUT", node.host, path, build_tls(args), token=read_token(args))
        print(f"Apply action on node success: {self.action} {node.node_id}")

    def require_node(self, registry: NodeRegistry, node_id: str) -> NodeStatus:
        """The node's entry. Raises Permanent if it is not in the registry."""
        entry = registry.find_pump(node_id)
        if entry is None:
            raise build_unknown_node_error(PUMPS + node_id)
        return entry.status


class PausePumpCommand(NodeAction):
    """`binlake pause-pump`."""

    examples = ("binlake pause-pump --node-id pump-1 --token-file admin-token --pd-urls http://10.0.0.5:2379",)
    help = "stop a pump that will be started again: its data is still needed"
    action = "pause"


class OfflinePumpCommand(NodeAction):
    """`binlake offline-pump`."""

    examples = ("binlake offline-pump --node-id pump-1 --token-file admin-token --pd-urls http://10.0.0.5:2379",)
    help = "remove a pump permanently: it accepts no more prewrites, waits for its consumers, and goes offline"
    action = "close"

    def apply(self, registry: NodeRegistry, node: NodeStatus, args: argparse.Namespace) -> None:
        """Ask the pump, and say what it waits for."""
        original = _is_original(node, build_tls(args))
        super().apply(registry, node, args)
        missing = format_unread_range(node, registry.list_drainers())
        if original:
            warn(
                "this is an original pump: it does not check Binlake's windows and may go offline before everything "
                "is landed" + (f". Not read yet: {missing}" if missing else "")
            )
            return
        print(
            "it goes offline when consumers have read everything it holds"
            + (f"; not yet: {missing}" if missing else "")
        )


def _is_original(node: NodeStatus, tls: Tls | None) -> bool:
    """Whether a pump is an original one, which has no Info service."""
    try:
        PumpReader(node.host, 0, timeout_s=_HEARTBEAT_S, tls=tls).read_info()
    except WireError:
        return True
    except BinlakeError:
        return False  # the pump does not answer: the next request reports that
    return False


def warn(text: str) -> None:
    """Print a warning to stderr."""
    print(f"WARNING: {text}", file=sys.stderr)
