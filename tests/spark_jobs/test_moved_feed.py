"""The position of a feed at its sink, changed by another hand: refused until it is back or adopted; nothing is lost.

Each kind of sink has its own way to be wrong: Kafka's position is a message, that of files is in `metadata`, that of
binlog files in their index.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from confluent_kafka import Producer
from history import shop
from lakehouse import Lakehouse, Source
from support.examples import spread
from support.topics import read_topic

from binlake.cli import run
from binlake.errors import Permanent, PositionMoved
from binlake.feed.kafka import POSITIONS
from binlake.feed.manifest import ChangePosition
from binlake.feed.state import read_state, record_resume
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.runner import run_sink

if TYPE_CHECKING:
    from deploy.local.kafka import KafkaBroker

FEED = "f"


class Store(Protocol):
    """A sink whose position can be changed by hand."""

    uri: str

    def keep(self) -> None:
        """Keep a copy of the position as it is now: an older one."""

    def change(self, how: str, ahead: int) -> None:
        """Change the position, to the commit_ts `ahead` or as `how` says."""

    def put_back(self) -> None:
        """Undo `change`."""

    def read(self) -> list[Any]:
        """What consumers can read."""


class Folder:
    """A feed's folder. `protocol` pb: binlog files."""

    def __init__(self, root: Path, protocol: str) -> None:
        self._at, self._old, self._own = root / "files", root / "old", root / "own"
        self.uri = f"file://{self._at}?protocol={protocol}"
        self._position = "_binlake/index.json" if protocol == "pb" else "metadata"

    def keep(self) -> None:
        shutil.copytree(self._at, self._old)

    def change(self, how: str, ahead: int) -> None:
        shutil.copytree(self._at, self._own)
        at = self._at / self._position
        if how == "ahead":
            at.write_text(re.sub(r'("hi": "|"checkpoint-ts":)\d+', rf"\g<1>{ahead}", at.read_text()))
        elif how == "back":
            shutil.copy(self._old / self._position, at)
        elif how == "removed":
            at.unlink()
        else:
            shutil.rmtree(self._at)

    def put_back(self) -> None:
        shutil.rmtree(self._at, ignore_errors=True)
        shutil.copytree(self._own, self._at)

    def read(self) -> list[Any]:
        return sorted((str(at.relative_to(self._at)), at.read_bytes()) for at in self._at.rglob("*")
                      if at.is_file() and "_binlake" not in at.parts)  # fmt: skip


class Topic:
    """A topic, and the feed's position in the topic of positions."""

    def __init__(self, kafka: KafkaBroker, name: str) -> None:
        self._brokers, self._topic, self._key = kafka.address, f"{name}-items", f"{name}.{FEED}".encode()
        self.uri = f"kafka://{kafka.address}/{self._topic}?protocol=canal-json&partition-num=1"
        self._old: bytes | None = None
        self._own: bytes | None = None

    def keep(self) -> None:
        self._old = self._position()

    def change(self, how: str, ahead: int) -> None:
        self._own = self._position()
        self._put({"ahead": ChangePosition.after_commit(ahead).to_text().encode(), "back": self._old}.get(how))

    def put_back(self) -> None:
        self._put(self._own)

    def read(self) -> list[Any]:
        return [(read.key, re.sub(rb'"(ts|buildTs)":\d+', b"", read.value or b"")) for read in
                read_topic(self._brokers, self._topic)]  # fmt: skip

    def _position(self) -> bytes | None:
        return [read.value for read in read_topic(self._brokers, POSITIONS) if read.key == self._key][-1]

    def _put(self, value: bytes | None) -> None:
        producer = Producer({"bootstrap.servers": self._brokers})
        producer.produce(POSITIONS, value, self._key, 0)
        producer.flush()


class Place:
    """A lake of three windows with one feed to `store`."""

    def __init__(self, root: Path, store: Store, name: str) -> None:
        self.history, self.store = shop(), store
        self.file = root / "r.toml"
        self.file.write_text(
            f'name = "{name}"\n[lake]\npath = "{root / "lake"}"\n[mirror]\nenabled = false\n'
            f'[[feed]]\nname = "{FEED}"\nsink-uri = "{store.uri}"\nrules = ["shop.item"]\n'
        )
        section = {"name": FEED, "sink-uri": store.uri, "rules": ["shop.item"]}
        config = {"name": name, "feed": [section], "mirror": {"enabled": False}}
        self.lakehouse = Lakehouse(None, root / "lake", Source.of_workload(self.history.workload), config)
        self.ctx = self.lakehouse.context()
        self.cuts = [0, *self.history.cuts]

    def send(self, window: int) -> list[str]:
        bounds = Bounds(self.cuts[window], self.cuts[window + 1])
        if (bounds.lo, bounds.hi) not in self.ctx.windows.list_landed():
            self.lakehouse.land(bounds.lo, bounds.hi)
        return [result.state for result in run_sink(self.ctx, ("encode", "publish"), bounds, feed=FEED)]

    def call(self, *words: str) -> int:
        return run(["changefeed", *words, "-c", FEED, "--replication", str(self.file)])


MakePlace = Callable[[str, str], Place]


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> MakePlace:
    """Make a lake whose feed goes to a `kind` of sink."""

    def make(kind: str, name: str) -> Place:
        root = tmp_path / name
        root.mkdir()
        name = re.sub(r"\W", "", f"{tmp_path.name}{name}").replace("_", "")[-50:]
        store = Topic(request.getfixturevalue("kafka"), name) if kind == "kafka" else Folder(root, kind)
        return Place(root, store, name)

    return make


@pytest.fixture(scope="module")
def whole() -> dict[str, list[Any]]:
    """What an undisturbed feed sends, by kind of sink."""
    return {}


WORDS = {"ahead": "ahead of", "back": "behind", "removed": "no position", "emptied": "no position"}
OFTEN = [("canal-json", "back"), ("pb", "removed"), ("kafka", "ahead")]
"""The others are for `make soak`: they check the same by other moves."""
CASES = [
    pytest.param(kind, how, marks=[] if (kind, how) in OFTEN else [pytest.mark.soak])
    for kind in ("canal-json", "pb", "kafka")
    for how in WORDS
    if (kind, how) != ("kafka", "emptied")
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "how"), CASES)
def test_changed_position_stops_the_feed_until_it_is_back(
    place: MakePlace, whole: dict[str, list[Any]], kind: str, how: str
) -> None:
    if kind not in whole:
        undisturbed = place(kind, "a")
        for window in range(3):
            undisturbed.send(window)
        whole[kind] = undisturbed.store.read()
    moved = place(kind, "b")
    moved.send(0)
    moved.store.keep()
    moved.send(1)
    moved.store.change(how, ahead=moved.cuts[3] - 1)
    found = moved.store.read()
    # Binlog files without their index count as another writer's.
    error, text = (Permanent, "not Binlake's") if (kind, how) == ("pb", "removed") else (PositionMoved, WORDS[how])
    for _ in range(2):
        with pytest.raises(error, match=text):
            moved.send(2)
        assert read_state(moved.ctx.windows, FEED).state == "error"
        assert moved.send(2) == ["skipped"]  # it stays so: no error that time erases
        record_resume(moved.ctx.windows, FEED)
    assert moved.store.read() == found
    moved.store.put_back()
    moved.send(2)
    assert moved.store.read() == whole[kind]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "how"), spread([("canal-json", "back"), ("kafka", "ahead"), ("pb", "ahead")], least=2)
)
def test_adopted_position_is_continued_from_and_nothing_is_written_over(
    place: MakePlace, capsys: pytest.CaptureFixture[str], kind: str, how: str
) -> None:
    moved = place(kind, "b")
    moved.send(0)
    moved.store.keep()
    moved.send(1)
    # The two files that say where the others end are written for each window.
    sent = {name: content for name, content in moved.store.read() if not str(name).endswith(("metadata", "CDC.index"))}
    moved.store.change(how, ahead=moved.cuts[3])
    with pytest.raises(PositionMoved):
        moved.send(2)
    assert moved.call("resume", "--unreachable-ok", "--adopt-position") == 0
    assert moved.send(2) == ["already", "done"]
    assert sent.items() <= dict(moved.store.read()).items()
    assert moved.send(2) == ["already", "already"]
    assert moved.call("resume", "--unreachable-ok", "--adopt-position") == 1
    assert "only the position of a stopped changefeed" in capsys.readouterr().err


@pytest.mark.long
def test_place_in_a_window_counts_only_once_publish_has_begun_it(place: MakePlace) -> None:
    moved = place("kafka", "b")
    moved.send(0)
    # Within the next window, where a killed publish may also have stopped.
    moved.store.change("ahead", ahead=moved.cuts[2] - 1)
    with pytest.raises(PositionMoved, match="ahead of"):
        moved.send(1)
