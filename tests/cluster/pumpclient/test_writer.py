"""PumpClient: P goes to a usable pump, C and R to the same pump; errors are clear (tidb-binlog 4)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from stub_pumps import Listing, Node, StubPump, until

from binlake.cluster.pumpclient import ClientOptions, PumpClient, WriteTimes, writer
from binlake.common.spool import SpoolFile, SpoolPiece
from binlake.errors import ConfigError, Permanent, SourceUnavailable
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog, Commit, Prewrite, Rollback

# A pump that answers late on a busy machine is not skipped; tests that need short timeouts use HASTY.
QUICK = WriteTimes(60, 60, 0.01, 0.05, probe_interval=0.05)
HASTY = replace(QUICK, write_timeout=0.5, commit_timeout=0.5)
OPTIONS = ClientOptions(times=QUICK)


@dataclass
class Pumps:
    """Three stub pumps and a client."""

    stubs: list[StubPump]
    listing: Listing
    client: PumpClient

    def counts(self) -> list[int]:
        return [len(stub.got) for stub in self.stubs]


@pytest.fixture
def pumps() -> Iterator[Pumps]:
    stubs = [StubPump() for _ in range(3)]
    listing = Listing({f"pump{n}": Node(f"pump{n}", stub.host) for n, stub in enumerate(stubs)})
    with PumpClient(listing, 7, OPTIONS) as client:
        yield Pumps(stubs, listing, client)
    for stub in stubs:
        stub.server.stop(0).wait()


def p(start_ts: int) -> Binlog:
    return build.build_prewrite(start_ts, b"k", b"\x08\x17")


def c(start_ts: int) -> Binlog:
    return build.build_commit(p(start_ts), start_ts + 10_000)


def test_prewrites_go_round_robin_and_commits_follow_them(pumps: Pumps) -> None:
    # S0-06, S0-42, S0-43
    placed = {ts: pumps.client.write_prewrite(p(ts)) for ts in range(1, 7)}
    assert list(placed.values()) == ["pump0", "pump1", "pump2"] * 2
    for ts in (6, 5, 4, 3):
        assert pumps.client.write_commit(c(ts)) == placed[ts]
    for ts in (2, 1):
        assert pumps.client.write_rollback(build.build_rollback(p(ts))) == placed[ts]
    assert [stub.types() for stub in pumps.stubs] == [
        [Prewrite, Prewrite, Commit, Rollback],
        [Prewrite, Prewrite, Commit, Rollback],
        [Prewrite, Prewrite, Commit, Commit],
    ]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["range", "hash", "score", "nonsense"])
def test_each_strategy_uses_all_pumps_and_keeps_transactions_together(pumps: Pumps, strategy: str) -> None:
    # S0-41, S0-42: an unknown strategy means range.
    with PumpClient(pumps.listing, 7, replace(OPTIONS, strategy=strategy)) as client:
        for ts in range(90):
            assert client.write_prewrite(p(ts)) == client.write_commit(c(ts))
    assert pumps.counts() == [60, 60, 60]


def test_hash_chooses_by_start_ts_and_retries_on_the_next_pump(pumps: Pumps) -> None:
    # S0-44
    with PumpClient(pumps.listing, 7, replace(OPTIONS, strategy="hash")) as client:
        assert [client.write_prewrite(p(ts)) for ts in (6, 7, 8)] == ["pump0", "pump1", "pump2"]
        pumps.stubs[0].fails = 1
        assert client.write_prewrite(p(9)) == "pump1"


def test_score_follows_changes_of_published_scores(pumps: Pumps) -> None:
    # S0-45
    for name, score in (("pump0", 30), ("pump1", 70), ("pump2", 100)):
        pumps.listing.change(name, score=score)
    with PumpClient(pumps.listing, 7, replace(OPTIONS, strategy="score")) as client:
        assert _count_placed(client, 200) == [30, 70, 100]
        pumps.listing.change("pump2", score=30)
        pumps.listing.change("pump1", score=30)
        # Equal shares need both new scores: with one of them, a pump gets more than the others.
        until(lambda: _count_placed(client, 30) == [10, 10, 10], "the new scores")
        assert _count_placed(client, 90) == [30, 30, 30]


def _count_placed(client: PumpClient, prewrites: int) -> list[int]:
    placed = [client.write_prewrite(p(ts)) for ts in range(prewrites)]
    return [placed.count(f"pump{n}") for n in range(3)]


def test_prewrite_tries_the_next_pump_at_once_and_its_commit_follows(pumps: Pumps) -> None:
    # S0-39
    slow = replace(OPTIONS, times=replace(QUICK, retry_prewrite=3600))
    pumps.stubs[0].fails = pumps.stubs[1].fails = 1
    with PumpClient(pumps.listing, 7, slow) as client:
        assert client.write_prewrite(p(1)) == "pump2"
        assert client.write_commit(c(1)) == "pump2"
        assert client.stats.prewrite_retries == 2
    assert pumps.counts() == [0, 0, 2]


def test_commit_is_retried_only_on_its_pump(pumps: Pumps) -> None:
    # S0-42
    pumps.client.write_prewrite(p(1))
    pumps.stubs[0].fails = 2
    assert pumps.client.write_commit(c(1)) == "pump0"
    assert pumps.counts() == [2, 0, 0]


def test_sent_commit_does_not_block_and_arrives_when_its_pump_recovers(pumps: Pumps) -> None:
    # S0-24: the application continues; a dead pump does not delay commits for another pump.
    # No probes: a probe that reaches the pump would be counted too.
    with PumpClient(pumps.listing, 7, replace(OPTIONS, times=replace(QUICK, probe_interval=3600))) as client:
        placed = {ts: client.write_prewrite(p(ts)) for ts in range(30)}
        pumps.stubs[0].fails = 10_000
        assert {ts: client.send_commit(c(ts)) for ts in range(30)} == placed
        until(lambda: pumps.counts()[1:] == [20, 20], "the ends of the other pumps")
        until(lambda: client.stats.commit_retries > 20, "retries")
        pumps.stubs[0].fails = 0
        assert client.drain(60) == 0
        assert pumps.counts() == [20, 20, 20]
        assert client.stats.given_up == 0
        with pytest.raises(Permanent, match="wrote no prewrite"):
            client.send_commit(c(5))  # the client forgets it with its commit


def test_sent_commit_that_is_never_accepted_is_given_up_and_counted(pumps: Pumps) -> None:
    # S0-24
    with PumpClient(pumps.listing, 7, replace(OPTIONS, times=HASTY)) as client:
        client.write_prewrite(p(1))
        pumps.stubs[0].fails = 10_000
        client.send_rollback(build.build_rollback(p(1)))
        assert client.drain(60) == 0
        assert client.stats.given_up == 1
    assert pumps.counts() == [1, 0, 0]


def test_pump_that_moved_to_another_port_is_found(pumps: Pumps) -> None:
    pumps.client.write_prewrite(p(1))
    pumps.stubs[0].server.stop(0).wait()
    moved = StubPump()
    pumps.listing.change("pump0", host=moved.host)
    assert pumps.client.write_commit(c(1)) == "pump0"
    assert moved.types() == [Commit]
    moved.server.stop(0).wait()


def test_commit_that_its_pump_never_accepts_is_an_error(pumps: Pumps) -> None:
    with PumpClient(pumps.listing, 7, replace(OPTIONS, times=HASTY)) as client:
        client.write_prewrite(p(1))
        pumps.stubs[0].fails = 1000
        with pytest.raises(SourceUnavailable, match="pump=pump0 start_ts=1"):
            client.write_commit(c(1))


def test_commit_without_a_prewrite_is_an_error(pumps: Pumps) -> None:
    with pytest.raises(Permanent, match="wrote no prewrite"):
        pumps.client.write_rollback(build.build_rollback(p(1)))
    pumps.client.write_prewrite(p(2))
    pumps.client.forget(2)
    with pytest.raises(Permanent, match="wrote no prewrite"):
        pumps.client.write_commit(c(2))


def test_commit_goes_to_the_named_pump_if_another_client_wrote_the_prewrite(pumps: Pumps) -> None:
    assert pumps.client.write_rollback(build.build_rollback(p(1)), "pump2") == "pump2"
    assert pumps.counts() == [0, 0, 1]


def test_only_online_pumps_get_prewrites(pumps: Pumps) -> None:
    # S0-36
    for number, state in enumerate(("pausing", "paused", "closing", "offline")):
        pumps.listing.put(Node(f"other{number}", pumps.stubs[2].host, state))
    pumps.listing.change("pump0", state="paused")
    pumps.listing.delete("pump2")
    with PumpClient(pumps.listing, 7, OPTIONS) as client:
        assert client.list_usable_pumps() == ["pump1"]
        assert {client.write_prewrite(p(ts)) for ts in range(1, 4)} == {"pump1"}


def test_error_says_that_no_pump_is_online() -> None:
    # S0-23: the writer must fail its transaction.
    with (
        PumpClient(Listing(), 7, replace(OPTIONS, times=HASTY)) as client,
        pytest.raises(SourceUnavailable, match="no available pump"),
    ):
        client.write_prewrite(p(9))


def test_new_removed_and_changed_pumps_are_followed(pumps: Pumps) -> None:
    # S0-10, S0-27, S0-38
    assert pumps.client.list_usable_pumps() == ["pump0", "pump1", "pump2"]
    pumps.listing.put(Node("pump3", pumps.stubs[0].host))
    until(lambda: pumps.client.list_usable_pumps() == ["pump0", "pump1", "pump2", "pump3"], "the new one")
    pumps.listing.delete("pump1")
    pumps.listing.change("pump2", state="paused")
    until(lambda: pumps.client.list_usable_pumps() == ["pump0", "pump3"], "those that left")
    pumps.listing.change("pump2", state="online")
    until(lambda: pumps.client.list_usable_pumps() == ["pump0", "pump2", "pump3"], "the one that is back")


@pytest.mark.long
def test_broken_watch_is_restarted_with_a_fresh_listing(pumps: Pumps) -> None:
    pumps.client.list_usable_pumps()
    watch = pumps.listing.watches.pop()
    pumps.listing.delete("pump1")  # nobody is notified
    watch.close()
    until(lambda: pumps.client.list_usable_pumps() == ["pump0", "pump2"], "the new listing")


def test_pump_is_avoided_after_ten_errors_until_a_probe_succeeds(pumps: Pumps) -> None:
    # S0-11, S0-39, S0-40; no transaction is affected
    pumps.client.close()
    with PumpClient(pumps.listing, 7, replace(OPTIONS, times=replace(QUICK, probe_interval=3600))) as client:
        pumps.stubs[0].fails = 10_000
        for ts in range(1, 100):
            client.write_prewrite(p(ts))
        assert pumps.stubs[0].fails == 10_000 - 11
        assert client.list_usable_pumps() == ["pump1", "pump2"]
    with PumpClient(pumps.listing, 7, OPTIONS) as client:
        for ts in range(100, 200):
            client.write_prewrite(p(ts))
        until(lambda: client.stats.probes > 2, "probes")
        assert client.list_usable_pumps() == ["pump1", "pump2"]
        pumps.stubs[0].fails = 0
        until(lambda: client.list_usable_pumps() == ["pump0", "pump1", "pump2"], "a probe that succeeds")
        assert not any(binlog.ByteSize() for binlog in pumps.stubs[0].got)  # probes are empty


def test_pump_that_is_online_again_is_used_at_once(pumps: Pumps) -> None:
    # S0-38
    with PumpClient(pumps.listing, 7, replace(OPTIONS, times=replace(QUICK, probe_interval=3600))) as client:
        pumps.stubs[0].fails = 11
        for ts in range(1, 40):
            client.write_prewrite(p(ts))
        pumps.listing.change("pump0", state="paused")
        pumps.listing.change("pump0", state="online")
        until(lambda: "pump0" in client.list_usable_pumps(), "back in use")


def test_last_round_tries_avoided_pumps_too(pumps: Pumps) -> None:
    with PumpClient(pumps.listing, 7, replace(OPTIONS, times=replace(HASTY, probe_interval=3600))) as client:
        pumps.stubs[0].fails = 11
        for ts in range(1, 40):
            client.write_prewrite(p(ts))
        assert client.list_usable_pumps() == ["pump1", "pump2"]
        pumps.stubs[1].fails = pumps.stubs[2].fails = 10_000
        assert client.write_prewrite(p(40)) == "pump0"
        assert "pump0" in client.list_usable_pumps()


def test_failure_of_all_pumps_is_one_error_that_names_each(pumps: Pumps) -> None:
    for stub in pumps.stubs:
        stub.fails = 10_000
    began = time.monotonic()
    with (
        PumpClient(pumps.listing, 7, replace(OPTIONS, times=HASTY)) as client,
        pytest.raises(SourceUnavailable, match=r"no pump accepted the prewrite.*pump0=.*pump1=.*pump2="),
    ):
        client.write_prewrite(p(1))
    assert HASTY.write_timeout < time.monotonic() - began < 60


def test_prewrites_go_only_to_pumps_with_the_label(pumps: Pumps) -> None:
    # S0-32
    for number, zone in enumerate("aab"):
        pumps.listing.change(f"pump{number}", label={"zone": zone, "disk": "ssd"})
    own = replace(OPTIONS, times=HASTY, label={"zone": "b"})
    with PumpClient(pumps.listing, 7, own) as client:
        assert {client.write_prewrite(p(ts)) for ts in range(10)} == {"pump2"}
        pumps.listing.change("pump2", state="paused")
        until(lambda: not client.list_usable_pumps(), "nobody of the label")
        with pytest.raises(SourceUnavailable, match="zone=b"):
            client.write_prewrite(p(11))
    with PumpClient(pumps.listing, 7, replace(own, label_fallback=True)) as client:
        assert {client.write_prewrite(p(ts)) for ts in range(10)} == {"pump0", "pump1"}


def test_error_message_in_the_answer_counts_as_an_error(pumps: Pumps) -> None:
    pumps.stubs[0].errmsg = "no space"
    assert pumps.client.write_prewrite(p(1)) == "pump1"


def test_other_cluster_is_refused_at_once(pumps: Pumps) -> None:
    # S0-46
    pumps.stubs[0].fails, pumps.stubs[0].text = 1, "mismatched cluster id"
    with pytest.raises(ConfigError, match="cluster id"):
        pumps.client.write_prewrite(p(1))


def test_too_large_binlog_is_not_retried(pumps: Pumps, monkeypatch: pytest.MonkeyPatch) -> None:
    # S0-07
    pumps.stubs[0].fails, pumps.stubs[0].code = 1, grpc.StatusCode.RESOURCE_EXHAUSTED
    pumps.stubs[0].text = "Received message larger than max (5 vs. 4)"
    with pytest.raises(Permanent, match="too large"):
        pumps.client.write_prewrite(p(1))
    monkeypatch.setattr(writer, "MAX_BYTES", 100)
    with pytest.raises(Permanent, match=r"too large.*bytes=1\d\d limit=100"):
        pumps.client.write_prewrite(build.build_prewrite(2, b"k", bytes(100)))


def test_large_prewrite_is_read_again_for_another_pump(pumps: Pumps, tmp_path: Path) -> None:
    # U-06: its value is in a file, from which each try reads it.
    value, file = random.Random(1).randbytes(3 << 20), SpoolFile(tmp_path)
    file.append(b"before" + value)
    pieces = (SpoolPiece(file, 6, 1 << 20), value[1 << 20 : -5], SpoolPiece(file, 6 + len(value) - 5, 5))
    pumps.stubs[0].fails = 1
    assert pumps.client.write_prewrites([build.build_large_prewrite(1, b"k", pieces)]) == ["pump1"]
    (stored,) = pumps.stubs[1].got
    assert stored.SerializeToString() == build.build_prewrite(1, b"k", value).SerializeToString()


def test_known_pumps_are_used_while_the_registry_is_unavailable(pumps: Pumps) -> None:
    pumps.client.write_prewrite(p(1))
    pumps.listing.down = True
    pumps.listing.watches[-1].close()
    pumps.stubs[1].fails = 1
    assert pumps.client.write_prewrite(p(2)) == "pump2"
    with (
        PumpClient(pumps.listing, 7, replace(OPTIONS, times=HASTY)) as fresh,
        pytest.raises(SourceUnavailable, match="no registry"),
    ):
        fresh.write_prewrite(p(3))


def test_concurrent_writers_neither_lose_nor_duplicate_binlogs(pumps: Pumps) -> None:
    def run(start: int) -> None:
        for ts in range(start, start + 50):
            pumps.client.write_prewrite(p(ts))
            pumps.client.send_commit(c(ts))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(1000, 1200, 50)))
    assert pumps.client.drain(60) == 0
    for stub in pumps.stubs:
        prewritten = [binlog.start_ts for binlog in stub.got if binlog.tp == Prewrite]
        assert sorted(prewritten) == sorted(binlog.start_ts for binlog in stub.got if binlog.tp == Commit)
    assert sum(pumps.counts()) == 400


def test_closing_ends_all_threads(pumps: Pumps) -> None:
    pumps.client.write_prewrite(p(1))
    pumps.stubs[0].fails = 10_000
    pumps.client.send_commit(c(1))
    pumps.client.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pumpclient-")]
