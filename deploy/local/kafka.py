"""A private Kafka with one broker in KRaft mode, on loopback, for tests and the demo."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from binlake.common.installation import SHORT_LIVED
from deploy.local.ports import HOST, free_ports, is_open
from deploy.local.process import Child, ProcessError
from deploy.setup.kafka import install

_START_S = 180.0
_NODES = 3
_JAVA = ("java", "-Xmx384m", *SHORT_LIVED.split())


class KafkaBroker:
    """One broker and controller. `stop` keeps its data, so `start` can restart it; `close` removes the data."""

    def __init__(
        self,
        settings: dict[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`settings`: added to the broker's minimum; `users`: passwords for SCRAM; `folder`: of its files."""
        self.folder = folder or Path(tempfile.mkdtemp(prefix="binlake-kafka-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, self.controller = free_ports(2)
        self.cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._classes = f"{install()}/*"
        self._file = self.folder / "server.properties"
        lines = {**self._build_settings(), **(settings or {})}
        self._file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        self._service = Child("kafka", [*_JAVA, "-cp", self._classes, "kafka.Kafka", self._file], self.folder)
        self._format_storage(users or {})

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    def start(self) -> KafkaBroker:
        """Start, and return when it listens. Raises ProcessError."""
        self._service.start().wait_until(lambda: is_open(self.port), _START_S)
        return self

    def stop(self) -> None:
        """Stop it; its data stays."""
        self._service.stop()

    def kill9(self) -> None:
        """Kill it, as if the machine failed; its data stays."""
        self._service.kill9()

    def close(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> KafkaBroker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build_settings(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{self.controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{self.controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "data"),
            # A cluster of one broker has one copy of everything.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }

    def _format_storage(self, users: Mapping[str, str]) -> None:
        tool = [*_JAVA, "-cp", self._classes, "kafka.tools.StorageTool"]
        command = [*tool, "format", f"--cluster-id={self.cluster}", f"--config={self._file}"]
        for user, password in users.items():
            command += ["--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProcessError(f"Kafka's storage cannot be formatted: {done.stderr or done.stdout}")


class KafkaCluster:
    """Three brokers; the first is also the controller. Topics may have a replica on each."""

    def __init__(self) -> None:
        copies = {name: str(_NODES) for name in ("offsets.topic.replication.factor",
                                                 "transaction.state.log.replication.factor")}  # fmt: skip
        more = {**copies, "transaction.state.log.min.isr": "2", "min.insync.replicas": "2"}
        first = KafkaBroker(more)
        self.brokers = {1: first, **{node: _Joined(first, node, more) for node in range(2, _NODES + 1)}}

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of each broker."""
        return tuple(broker.address for broker in self.brokers.values())

    def __enter__(self) -> KafkaCluster:
        for broker in self.brokers.values():
            broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for broker in reversed(self.brokers.values()):
            broker.close()


class _Joined(KafkaBroker):
    """A broker without a controller, in the cluster of `first`."""

    def __init__(self, first: KafkaBroker, node: int, more: dict[str, str]) -> None:
        self._first, self._node = first, node
        super().__init__(more)

    def _build_settings(self) -> dict[str, str]:
        self.cluster = self._first.cluster
        own = {
            "process.roles": "broker",
            "node.id": str(self._node),
            "listeners": f"PLAINTEXT://{self.address}",
            "controller.quorum.voters": f"1@{HOST}:{self._first.controller}",
        }
        return super()._build_settings() | own
