"""On which folder a feeder may start: only on its own, newest one (R-10)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from feeder_helpers import CountingClock, MemoryPumps, position, rows

from binlake.cluster.placement import EtcdClient
from binlake.cluster.placement.registry import CATALOG
from binlake.errors import Fenced, Permanent, SourceUnavailable
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.pump_service.feeder.registration import Registration
from binlake.pump_service.pd import PlacementDriver


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdClient]:
    with PlacementDriver(tmp_path / "pd") as driver, closing(EtcdClient([driver.url])) as client:
        yield client


def start(
    etcd: EtcdClient, folder: Path, cluster_id: int = 7, name: str = "feeder"
) -> tuple[FeederJournal, Registration]:
    journal = FeederJournal(folder)
    registration = Registration(etcd, name, cluster_id, journal, folder)
    try:
        registration.begin(lambda _: None)
    except BaseException:
        journal.close()
        raise
    return journal, registration


def publish(journal: FeederJournal, first: int = 1) -> None:
    publisher = SourcePublisher(journal, MemoryPumps(), CountingClock(first << 30), threading.Event())
    publisher.publish("s", rows(first, 2), position(first))


def test_a_feeder_restarts_on_its_own_folder_after_a_stop_or_kill(etcd: EtcdClient, tmp_path: Path) -> None:
    for number, clean in enumerate((True, False, False, True), 1):
        journal, registration = start(etcd, tmp_path / "a")
        publish(journal, number)
        registration.renew()
        if clean:
            registration.end()
        journal.close()


def _lose(folder: Path) -> None:
    shutil.rmtree(folder)


def _replace_by_another(folder: Path) -> None:
    shutil.rmtree(folder)
    journal = FeederJournal(folder)
    journal.set_facts({"starts": "9"})
    publish(journal, 999)
    journal.close()


def _bring_old_copy_back(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("copy"), folder)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_lose, "the folder is empty"),
        (_replace_by_another, "another feeder's"),
        (_bring_old_copy_back, "an old copy"),
    ],
)
def test_a_folder_that_is_not_the_newest_is_refused(
    etcd: EtcdClient, tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "a"
    journal, registration = start(etcd, folder)
    publish(journal)
    shutil.copytree(folder, tmp_path / "copy")
    publish(journal, 3)
    registration.renew()
    journal.close()
    harm(folder)
    with pytest.raises(Permanent, match=message) as caught:
        start(etcd, folder)
    assert "restore the newest folder" in caught.value.hint


def test_a_folder_of_another_cluster_is_refused(etcd: EtcdClient, tmp_path: Path) -> None:
    journal, _ = start(etcd, tmp_path / "a")
    journal.close()
    with pytest.raises(Permanent, match="another cluster"):
        start(etcd, tmp_path / "a", cluster_id=8)


def test_of_two_feeders_on_copies_of_one_folder_the_first_stops(etcd: EtcdClient, tmp_path: Path) -> None:
    journal, registration = start(etcd, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = FeederJournal(tmp_path / "b")
    second = Registration(etcd, "feeder", 7, copy, tmp_path / "b")

    def first_lives(_: float) -> None:
        publish(journal)
        registration.renew()

    with pytest.raises(Permanent, match="another feeder runs"):
        second.begin(first_lives)
    copy.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b", dirs_exist_ok=True)
    copy, second = start(etcd, tmp_path / "b")  # the first one does not answer: it is considered dead
    with pytest.raises(Fenced, match="must not publish"):
        registration.renew()
    second.renew()
    journal.close()
    copy.close()


def test_a_renewal_whose_answer_was_lost_is_the_feeders_own(
    etcd: EtcdClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The placement driver stores the entry and stops before it answers; meanwhile more is published.
    journal, registration = start(etcd, tmp_path / "a")
    put_if = etcd.put_if

    def lose_answer(*args: Any, **kwargs: Any) -> bool:
        put_if(*args, **kwargs)
        raise SourceUnavailable("the placement driver is stopping")

    for number in (1, 2):
        publish(journal, number)
        with monkeypatch.context() as patch:
            patch.setattr(etcd, "put_if", lose_answer)
            with pytest.raises(SourceUnavailable):
                registration.renew()
    publish(journal, 3)
    registration.renew()
    registration.end()
    journal.close()


def test_a_registry_without_the_entry_is_written_again(etcd: EtcdClient, tmp_path: Path) -> None:
    journal, _ = start(etcd, tmp_path / "a")
    publish(journal)
    journal.close()
    etcd.delete(b"/binlake/v1/feeders/feeder")
    journal, registration = start(etcd, tmp_path / "a")
    registration.renew()
    journal.close()


def test_a_second_feeder_of_a_pd_is_refused_since_its_tables_would_have_the_same_ids(
    etcd: EtcdClient, tmp_path: Path
) -> None:
    journal, registration = start(etcd, tmp_path / "a", name="first")
    for _ in range(2):
        with pytest.raises(Permanent, match=r"already belongs to the feeder first: .* the same ids") as caught:
            start(etcd, tmp_path / "b", name="second")
    assert "[[source]]" in caught.value.hint
    registration.renew()
    publish(journal)
    journal.close()


def test_a_folder_numbers_its_tables_under_any_name_but_a_copy_of_it_must_not(etcd: EtcdClient, tmp_path: Path) -> None:
    start(etcd, tmp_path / "a", name="first")[0].close()
    start(etcd, tmp_path / "a", name="renamed")[0].close()  # it was killed, not stopped
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in ("first", "second"):
        with pytest.raises(Permanent, match="a copy of that of the feeder renamed"):
            start(etcd, tmp_path / "b", name=name)


def test_a_feeder_from_before_the_pd_knew_its_owner_goes_on(etcd: EtcdClient, tmp_path: Path) -> None:
    entries = {}
    for name in ("lost", "first"):  # `lost` was replaced by `first`
        start(etcd, tmp_path / name, name=name)[0].close()
        key = f"/binlake/v1/feeders/{name}".encode()
        entries[key] = value(etcd, key)
        etcd.delete(key)
        etcd.delete(CATALOG)
    for key, entry in entries.items():
        etcd.put(key, entry)
    with pytest.raises(Permanent, match=r"already belongs to the feeder (lost|first)"):
        start(etcd, tmp_path / "new", name="new")
    start(etcd, tmp_path / "first", name="first")[0].close()
    with pytest.raises(Permanent, match="already belongs to the feeder first"):
        start(etcd, tmp_path / "lost", name="lost")


def value(etcd: EtcdClient, key: bytes) -> bytes:
    stored = etcd.get(key)
    assert stored is not None
    return stored.value


def test_a_feeder_at_the_pd_of_a_tidb_is_refused(etcd: EtcdClient, tmp_path: Path) -> None:
    etcd.put(b"/topology/tidb/10.0.0.1:4000/info", b"{}")
    with pytest.raises(Permanent, match="already belongs to a TiDB cluster"):
        start(etcd, tmp_path / "a")
