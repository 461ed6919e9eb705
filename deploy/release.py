"""`make release VERSION=0.2.0`: tests a clean checkout, then makes packages, notes, a commit and a tag.

Nothing leaves this machine: the last lines say how to publish what was made.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.setup.common import REPOSITORY, SetupError, run
from deploy.setup.packages import install_uv

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_OWN = re.compile(r'^version = "(.+)"$', re.MULTILINE)
_TESTS = ("lint", "test", "check-wheel")
_NAMES = ("pyproject.toml", "README.md", "docs/operate/install.md")


def main(words: Sequence[str] | None = None) -> int:
    """Make the release; print what is missing, and exit status 1, if the checkout is not ready for one."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", help="MAJOR.MINOR.PATCH, as in CHANGELOG.md")
    parser.add_argument("--without-tests", action="store_true", help="the same commit has passed them just now")
    options = parser.parse_args(words)
    try:
        release(REPOSITORY, options.version, () if options.without_tests else _TESTS)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def release(folder: Path, version: str, tests: Sequence[str]) -> None:
    """Make the release `version` of the checkout `folder`, after the make targets `tests`. Raises SetupError."""
    require_ready(folder, version)
    for target in tests:
        print(f"release: make {target}", flush=True)
        if subprocess.run(["make", target], cwd=folder, check=False).returncode:
            raise SetupError(f"`make {target}` failed; nothing was changed")
    require_ready(folder, version)
    changelog = folder / "CHANGELOG.md"
    changelog.write_text(
        date_section(changelog.read_text(encoding="utf-8"), version, datetime.date.today()), encoding="utf-8"
    )
    replace_version(folder, version)
    uv = str(install_uv())
    run([uv, "lock", "--quiet"], folder)
    dist = folder / "dist"
    run([uv, "build", "--quiet", "--out-dir", str(dist)], folder)
    notes = dist / f"notes-{version}.md"
    notes.write_text(read_notes(changelog.read_text(encoding="utf-8"), version), encoding="utf-8")
    (dist / f"licenses-{version}.txt").write_text(run([sys.executable, "-m", "deploy.licenses"], folder))
    (dist / f"binlake-{version}.cdx.json").write_text(build_bill(uv, folder))
    run(["git", "commit", "--quiet", "--all", "--message", f"Release {version}"], folder)
    run(["git", "tag", "--annotate", "--cleanup=verbatim", f"v{version}", "--file", str(notes)], folder)
    print(f"release: v{version} is tagged; packages, notes, licences and bill of materials are in {dist}")
    print(f"publish: git push origin HEAD v{version} && {Path(uv).name} publish {dist}/binlake-{version}*")


def build_bill(uv: str, folder: Path) -> str:
    """The bill of materials (SBOM, CycloneDX 1.5) of the locked packages of all extras. Raises SetupError."""
    words = ["export", "--quiet", "--frozen", "--no-dev", "--extra", "all", "--format", "cyclonedx1.5"]
    return run([uv, *words, "--preview-features", "sbom-export"], folder)


def require_ready(folder: Path, version: str) -> None:
    """Raise SetupError if `folder` has uncommitted files, or lacks notes or recorded data of `version`."""
    if not _VERSION.fullmatch(version):
        raise SetupError(f"{version} is not a version: write MAJOR.MINOR.PATCH")
    changed = [line.split()[-1] for line in run(["git", "status", "--porcelain"], folder).splitlines()]
    if changed:
        raise SetupError(f"the checkout has uncommitted files: {', '.join(changed)[:200]}; commit them first")
    if f"v{version}" in run(["git", "tag", "--list"], folder).split():
        raise SetupError(f"v{version} exists already")
    read_notes((folder / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    recorded = folder / "tests" / "releases" / version
    if not recorded.is_dir():
        raise SetupError(
            f"{recorded} is missing, by which later versions prove that they open this one's data: run"
            f" `python tests/support/releases.py {version}` and commit it"
        )


def read_notes(changelog: str, version: str) -> str:
    """The section of `version` without its heading. Raises SetupError if there is none, or it is empty."""
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise SetupError(f"CHANGELOG.md has no section `## [{version}]` with text")
    return found[1].strip() + "\n"


def date_section(changelog: str, version: str, day: datetime.date) -> str:
    """`changelog` with `day` in the heading of `version`, in place of `unreleased`."""
    return re.sub(
        rf"^## \[{re.escape(version)}\].*$", f"## [{version}] - {day.isoformat()}", changelog, flags=re.MULTILINE
    )


def replace_version(folder: Path, version: str) -> None:
    """Write `version` into pyproject.toml, and wherever a page names the wheel of the version before."""
    own = _OWN.search((folder / "pyproject.toml").read_text(encoding="utf-8"))
    if own is None:
        raise SetupError("pyproject.toml has no line `version = ...`")
    for name in _NAMES:
        path = folder / name
        path.write_text(path.read_text(encoding="utf-8").replace(own[1], version), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
