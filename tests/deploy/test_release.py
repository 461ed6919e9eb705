"""`make release`: what it refuses, and what it writes. The whole command was run in a clone."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path

import pytest

from deploy import release
from deploy.setup.common import REPOSITORY, SetupError
from deploy.setup.packages import install_uv

CHANGELOG = "# Changes\n\n## [0.3.0] - unreleased\n\n- new\n\n## [0.2.0] - 2026-11-30\n\n- old\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clean checkout that is ready for 0.3.0."""
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "tests" / "releases" / "0.3.0").mkdir(parents=True)
    (tmp_path / "tests" / "releases" / "0.3.0" / "facts.json").write_text("{}")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "begin")
    release.require_ready(tmp_path, "0.3.0")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    """Run git in `folder` as a user without a configuration of their own."""
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=folder, check=True)


def test_a_checkout_with_changed_files_is_refused(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text(CHANGELOG + "\n")
    with pytest.raises(SetupError, match=r"uncommitted files: CHANGELOG\.md"):
        release.require_ready(checkout, "0.3.0")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("v0.3.0", "MAJOR.MINOR.PATCH"),
        ("0.4.0", r"no section `## \[0\.4\.0\]`"),
        ("0.2.0", r"releases/0\.2\.0 is missing.*tests/support/releases\.py 0\.2\.0"),
    ],
)
def test_a_version_without_notes_or_recorded_data_is_refused(checkout: Path, version: str, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        release.require_ready(checkout, version)


def test_a_version_is_released_once(checkout: Path) -> None:
    git(checkout, "tag", "--annotate", "v0.3.0", "--message", "x")
    with pytest.raises(SetupError, match=r"v0\.3\.0 exists already"):
        release.require_ready(checkout, "0.3.0")


def test_failed_tests_change_nothing(checkout: Path) -> None:
    (checkout / "Makefile").write_text("lint:\n\t@exit 3\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "tests")
    with pytest.raises(SetupError, match="`make lint` failed; nothing was changed"):
        release.release(checkout, "0.3.0", ["lint"])
    assert (checkout / "CHANGELOG.md").read_text() == CHANGELOG


def test_notes_are_the_section_of_the_version_and_get_the_day() -> None:
    assert release.read_notes(CHANGELOG, "0.3.0") == "- new\n"
    assert release.read_notes(CHANGELOG, "0.2.0") == "- old\n"
    dated = release.date_section(CHANGELOG, "0.3.0", datetime.date(2027, 1, 2))
    assert dated == CHANGELOG.replace("unreleased", "2027-01-02")


def test_bill_of_materials_has_all_locked_packages_and_no_tools_of_tests() -> None:
    bill = json.loads(release.build_bill(str(install_uv()), REPOSITORY))
    names = {component["name"] for component in bill["components"]}
    assert {"pyarrow", "deltalake", "apache-airflow", "pyspark", "plyvel"} <= names
    assert "pytest" not in names
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "binlake")


def test_every_page_that_names_the_wheel_names_the_released_one(tmp_path: Path) -> None:
    names = [one.name for one in REPOSITORY.glob("*.md")] + ["pyproject.toml", "docs/operate/install.md"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((REPOSITORY / name).read_text(encoding="utf-8"))
    release.replace_version(tmp_path, "9.8.7")
    texts = {name: (tmp_path / name).read_text(encoding="utf-8") for name in names}
    assert 'version = "9.8.7"' in texts["pyproject.toml"]
    assert "binlake-9.8.7-py3" in texts["README.md"]
    wheels = [name for name, text in texts.items() if ".dev0" in text]
    assert wheels == []
