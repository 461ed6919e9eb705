"""Installs jars below `.local`: with Maven if available (it knows a company's mirrors), else over HTTPS.

Each jar must have the SHA-256 given with its name. Of Delta only two jars are needed: the other dependencies are
already part of Spark.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.setup.common import (
    LOCAL,
    SetupError,
    find_program,
    hold_install_lock,
    run,
    run_installer,
    say,
    stage_folder,
)

ROOT = LOCAL / "jars"
CENTRAL = "https://repo1.maven.org/maven2"
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Jar:
    """One artifact of Maven, with the SHA-256 of its file; `kind` and `classifier`: of other files than jars."""

    group: str
    artifact: str
    version: str
    sha256: str
    kind: str = "jar"
    classifier: str = ""

    @property
    def file(self) -> str:
        """Name of its file."""
        return "-".join(part for part in (self.artifact, self.version, self.classifier) if part) + f".{self.kind}"

    @property
    def url(self) -> str:
        """Its place in Maven Central."""
        return f"{CENTRAL}/{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file}"

    def fits(self, folder: Path) -> bool:
        """Whether `folder` has it, whole."""
        path = folder / self.file
        return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256


JARS = (
    Jar(
        "io.delta",
        "delta-spark_4.2_2.13",
        "4.4.0",
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    ),
    Jar("io.delta", "delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
)


def install(root: Path = ROOT) -> Path:
    """Make sure that Delta's jars are installed and undamaged; returns their folder. Raises SetupError."""
    return install_jars("jars", "the Delta jars", JARS, root)


def install_jars(name: str, title: str, jars: Sequence[Jar], root: Path) -> Path:
    """Make sure that `jars` are in `root` and undamaged; returns the folder. `name`: the part's. Raises SetupError."""
    with hold_install_lock(name):
        if not all(jar.fits(root) for jar in jars):
            say(name, f"downloading {title} into {root}")
            with stage_folder(root) as tree:
                _fetch(jars, tree)
        return root


def _fetch(jars: Sequence[Jar], tree: Path) -> None:
    problems = []
    for way in (_download_by_maven, _download_by_https):
        try:
            way(jars, tree)
            _check(jars, tree)
            return
        except (SetupError, OSError) as error:
            problems.append(f"{way.__name__.removeprefix('_download_by_')}: {error}")
    raise SetupError("; ".join(problems))


def _check(jars: Sequence[Jar], tree: Path) -> None:
    wrong = [jar.file for jar in jars if not jar.fits(tree)]
    if wrong:
        raise SetupError(f"its checksum is not the expected one: {', '.join(wrong)}")


def _download_by_https(jars: Sequence[Jar], tree: Path) -> None:
    for jar in jars:
        with urllib.request.urlopen(jar.url, timeout=_TIMEOUT_S) as source, (tree / jar.file).open("wb") as out:
            shutil.copyfileobj(source, out)


def _download_by_maven(jars: Sequence[Jar], tree: Path) -> None:
    if find_program("mvn") is None:
        raise SetupError("mvn is not installed")
    with tempfile.TemporaryDirectory(prefix="binlake-jars-") as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(_render_pom(jars), encoding="utf-8")
        run(["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={tree}"])


def _render_pom(jars: Sequence[Jar]) -> str:
    own = "<groupId>binlake</groupId><artifactId>jars</artifactId><version>1</version>"
    wanted = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version><type>{jar.kind}</type><classifier>{jar.classifier}</classifier><exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId>"
        "</exclusion></exclusions></dependency>"
        for jar in jars
    )
    return f"<project><modelVersion>4.0.0</modelVersion>{own}<dependencies>{wanted}</dependencies></project>"


if __name__ == "__main__":
    sys.exit(run_installer("jars", lambda: str(install())))
