"""`binlake backfill emit` sends a range again, independently of the feed, with the schemas of its time."""

from __future__ import annotations

import pytest
from fed import FEED, Fed, Make, windows
from history import shop
from support.topics import read_topic
from support.workload import Workload, integer

from binlake.errors import ConfigError
from binlake.feed.kafka import POSITIONS
from binlake.feed.registry import SchemaRefused, SchemaRegistry
from binlake.feed.state import read_progress, read_state
from binlake.spark_jobs.commands import emit as emitting
from binlake.spark_jobs.commands.emit import Destination, emit
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.stages import publish


def read_sent(fed: Fed, topic: str) -> list[tuple[bytes, bytes | None]]:
    return [(read.key[5:], read.value and read.value[5:]) for read in read_topic(fed.kafka.address, topic)]


def read_positions(fed: Fed) -> dict[str, bytes | None]:
    own = f"{fed.ctx.replication.name}."
    reads = read_topic(fed.kafka.address, POSITIONS)
    return {read.key.decode(): read.value for read in reads if read.key.decode().startswith(own)}


def test_range_is_sent_again_and_the_feed_keeps_its_position(make: Make) -> None:
    history = shop()
    fed = make(history.workload, rules=["shop.item"])
    first, second, third = (fed.land(one.lo, one.hi) for one in windows(history))
    for bounds in (first, second):
        fed.send(bounds)
    topic, position = f"{fed.prefix}.shop.item", read_positions(fed)
    before = read_sent(fed, topic)
    # A range that ends inside windows.
    commits = sorted(ts for ts, _ in history.states if ts <= first.hi)
    lo, hi = commits[len(commits) // 2], second.hi - 1
    (result,) = emit(fed.ctx, FEED, lo, hi, Destination())
    after = read_sent(fed, topic)
    assert (result.state, result.rows) == ("done", len(after) - len(before))
    assert 0 < result.rows < len(before)
    assert set(after) == set(before)
    assert read_progress(fed.ctx.windows, FEED).checkpoint == second.hi
    assert read_state(fed.ctx.windows, FEED).number == 0
    assert {name: value for name, value in read_positions(fed).items() if value} == position
    # The whole lake to other topics, with all schemas in order, whatever the feed has sent of it.
    (whole,) = emit(fed.ctx, FEED, first.lo, third.hi, Destination("again_{schema}_{table}_" + fed.prefix))
    assert len(read_sent(fed, f"again_shop_item_{fed.prefix}")) == whole.rows
    assert set(before) <= set(read_sent(fed, f"again_shop_item_{fed.prefix}"))
    assert [path.name for path in (fed.ctx.paths.local / "feed").iterdir()] == [FEED]
    fed.send(third)
    assert len(read_sent(fed, topic)) == whole.rows + result.rows


def build_altered_table() -> tuple[Workload, list[int]]:
    """Rows of one table under two schemas, and the ends of both parts."""
    workload = Workload()
    workload.create_database("shop")
    workload.create_table("shop", "item", [integer("id")], ["id"])
    workload.begin().insert("shop", "item", id=1).commit()
    cuts = [workload.clock()]
    workload.add_column("shop", "item", integer("z"))
    workload.begin().insert("shop", "item", id=2, z=0).commit()
    return workload, [*cuts, workload.clock()]


#
def test_older_schema_is_looked_up_and_never_registered_as_the_newest(make: Make) -> None:
    workload, (middle, end) = build_altered_table()
    fed = make(workload, **{"start-ts": str(middle)})
    old, new = fed.land(0, middle), fed.land(middle, end)
    fed.send(new)
    subject = f"{fed.prefix}_shop_item-value"
    with SchemaRegistry(fed.registry.url) as registry:
        newest = registry.find_newest_schema(subject)
        with pytest.raises(SchemaRefused, match=r"would become the newest.*--topic") as caught:
            emit(fed.ctx, FEED, old.lo, old.hi, Destination())
        assert caught.value.where["subject"] == subject
        assert registry.find_newest_schema(subject) == newest
        assert read_state(fed.ctx.windows, FEED).state == "normal"
        # Other topics have separate subjects.
        topic = f"again_shop_item_{fed.prefix}"
        emit(fed.ctx, FEED, old.lo, new.hi, Destination("again_{schema}_{table}_" + fed.prefix))
        assert sorted(fed.decode(read.value)["id"] for read in read_topic(fed.kafka.address, topic)) == [1, 2]
        assert registry.find_newest_schema(f"{topic}-value") == newest
        # In those subjects, the older schema is found by its id and keeps its version.
        emit(fed.ctx, FEED, old.lo, old.hi, Destination("again_{schema}_{table}_" + fed.prefix))
        assert registry.find_newest_schema(f"{topic}-value") == newest


def test_killed_emit_resumes_without_duplicates(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, (middle, end) = build_altered_table()
    fed = make(workload)
    fed.land(0, middle)
    fed.land(middle, end)
    to, topic = Destination("again_{schema}_{table}_" + fed.prefix), f"again_shop_item_{fed.prefix}"

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    for module, name in ((publish.SchemaIds, "__exit__"), (emitting, "forget_position"), (emitting, "record_removal")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, die)
            with pytest.raises(Killed):
                emit(fed.ctx, FEED, 0, end, to)
        assert len(read_sent(fed, topic)) == 2
    (result,) = emit(fed.ctx, FEED, 0, end, to)
    assert (result.state, len(read_sent(fed, topic))) == ("done", 2)
    emit(fed.ctx, FEED, 0, end, to)
    assert len(read_sent(fed, topic)) == 4


def test_only_landed_ranges_can_be_sent_again(make: Make) -> None:
    workload, (middle, end) = build_altered_table()
    fed = make(workload)
    landed: Bounds = fed.land(0, middle)
    for lo, hi in ((0, end), (middle, middle)):
        with pytest.raises(ConfigError, match="does not hold the whole range"):
            emit(fed.ctx, FEED, lo, hi, Destination())
    with pytest.raises(ConfigError, match="no such feed"):
        emit(fed.ctx, "other", landed.lo, landed.hi, Destination())
    with pytest.raises(ConfigError, match="must contain"):
        emit(fed.ctx, FEED, landed.lo, landed.hi, Destination("fixed"))
