"""`make check-wheel`: the wheel has only Binlake's packages, and works in the three clean environments."""

from __future__ import annotations

import zipfile

import pytest

from deploy import wheel

pytestmark = [pytest.mark.soak, pytest.mark.process]


def test_wheel_has_sql_protos_pages_and_dag_files_below_its_packages() -> None:
    with zipfile.ZipFile(wheel.build()) as opened:
        names = set(opened.namelist())
    assert {
        "binlake/sql/checkpoint.sql",
        "binlake/proto/binlake/wire/pump.proto",
        "binlake/pump_service/pump/server.py",
        "binlake/py.typed",
        "binlake/spark_jobs/stages/land.py",
        "binlake_airflow/dagfiles/binlake_replications.py",
        "binlake_airflow/pages/templates/base.html",
    } <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"binlake", "binlake_airflow"}


def test_stray_top_level_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "TOP", wheel.TOP - {"binlake_airflow"})
    with pytest.raises(wheel.SetupError, match="binlake_airflow"):
        wheel.build()


def test_wheel_works_on_a_pump_host_in_another_airflow_and_beside_another_spark() -> None:
    assert wheel.main([]) == 0
