"""`binlake spark package`: what executors of a Spark cluster need, as one archive, and the settings to use it.

It has Binlake's Python code and the installed packages that the extra `lake` requires, so that an executor needs only
Spark and a Python of the same minor version: no file of the driver's machine. Tasks get all else with the job.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from binlake.common.commandline import add_output
from binlake.errors import ConfigError

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
"""The interpreter that executors start, found by their PATH. The archive's compiled modules fit no other one."""
_OWN = "binlake"
_FOLDER = "binlake-python"
"""Where the archive is unpacked, in an executor's working folder."""
_QUICK = 1
"""Level of compression. The best one saves a tenth of the bytes and takes six times as long."""
# Of a requirement: name, extras in brackets, and the extra of which it is a part.
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_OF_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
# Headers, libraries' own tests and type stubs, which no program loads.
_UNUSED = re.compile(r"(^|/)(tests|include|src|__pycache__)/|\.(pyi|pxd|pyx|h|hpp|a)$|^\.\.")


class SparkCommand:
    """Prepare a Spark cluster."""

    examples = (
        "binlake spark package binlake-spark.tar.gz",
        "binlake spark package binlake-spark.tar.gz --url https://files.example.org/binlake-spark.tar.gz",
    )
    help = "prepare a Spark cluster: write the archive that its executors need"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`package`: the archive's file, and where the cluster will find it."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        package = actions.add_parser(
            "package", help="write the archive that executors need, and print Spark's settings"
        )
        package.add_argument("file", type=Path, metavar="FILE", help="the archive to write: NAME.tar.gz or NAME.tar")
        package.add_argument(
            "--url", default="", help="where the driver will find it; default: FILE, which the driver serves itself"
        )
        add_output(package)

    def run(self, args: argparse.Namespace) -> int:
        """Write the archive and print the settings."""
        size = write_package(args.file)
        conf = build_package_conf(args.url or str(args.file.resolve()))
        if args.output == "json":
            print(json.dumps({"file": str(args.file), "bytes": size, "conf": conf, "env": build_package_env()}))
            return 0
        width = max(map(len, conf))
        print(f"# {args.file}: {size / 1e6:,.0f} MB. Executors need Spark and {PYTHON}, nothing else of this machine.")
        print("# spark-defaults.conf of the driver (spark-submit, --master) or of the Connect server:")
        print("\n".join(f"{name:<{width}} {value}" for name, value in conf.items()))
        print("# environment of the same process:")
        print("\n".join(f"{name}={value}" for name, value in build_package_env().items()))
        return 0


def write_package(file: Path) -> int:
    """Write the archive; returns its bytes. A half-written one has another name. Raises ConfigError, OSError."""
    if not file.name.endswith((".tar", ".tar.gz", ".tgz")):
        raise ConfigError(
            "this is no name of a Spark archive", where={"file": file}, hint="end it with .tar.gz or .tar"
        )
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with _open_archive(partial, zipped=not file.name.endswith(".tar")) as archive:
            for name, source in sorted(list_files().items()):
                archive.add(source, name, recursive=False, filter=_forget_owner)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return file.stat().st_size


def build_package_conf(archive: str) -> dict[str, str]:
    """The settings of Spark with which executors use `archive`: a URL, or a path on the driver's machine."""
    return {
        "spark.archives": f"{archive}#{_FOLDER}",
        # Python workers of a Connect session run in a folder below the executor's.
        "spark.executorEnv.PYTHONPATH": f"{_FOLDER}:../{_FOLDER}",
        "spark.python.daemon.module": "binlake.spark_jobs.engine.pyworkers",
    }


def build_package_env() -> dict[str, str]:
    """The environment of the driver, or of the Connect server, with the archive."""
    # By default Spark would start the driver's interpreter, by its path.
    return {"PYSPARK_PYTHON": PYTHON}


def _open_archive(file: Path, zipped: bool) -> tarfile.TarFile:
    # Links are stored as the files to which they point: these stay on this machine.
    if zipped:
        return tarfile.open(file, "w:gz", compresslevel=_QUICK, dereference=True)
    return tarfile.open(file, "w", dereference=True)


def list_files() -> dict[str, Path]:
    """All files of the archive by their names in it. Raises ConfigError if a package is not installed."""
    files: dict[str, Path] = {}
    for package, found in _list_distributions().items():
        for name in map(str, found.files or ()):
            # Binlake's own files may be in a checkout; here is only where its entry points are.
            if not _UNUSED.search(name) and (package != _OWN or ".dist-info/" in name):
                files |= _with_compiled(name, Path(str(found.locate_file(name))))
    return files | dict(_list_own())


def _list_own() -> Iterator[tuple[str, Path]]:
    spec = find_spec(_OWN)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        # In a checkout, two of its folders are links.
        for place, _, names in os.walk(folder, followlinks=True):
            inside = Path(_OWN, Path(place).relative_to(folder))
            for name in names:
                if not _UNUSED.search(str(inside / name)):
                    yield from _with_compiled(str(inside / name), Path(place, name)).items()


def _with_compiled(name: str, file: Path) -> dict[str, Path]:
    """`file`, and what Python has compiled of it: otherwise each executor would do that again."""
    compiled = Path(cache_from_source(str(file))) if name.endswith(".py") else None
    if compiled is None or not compiled.exists():
        return {name: file}
    return {name: file, str(Path(name).parent / "__pycache__" / compiled.name): compiled}


def _list_distributions() -> dict[str, Distribution]:
    """Those that `binlake[lake]` requires, and Binlake itself, by name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()

    def follow(name: str, extras: tuple[str, ...]) -> None:
        try:
            one = distribution(name)
        except PackageNotFoundError:
            # For another system or Python.
            return
        key = re.sub(r"[-_.]+", "-", name).lower()
        found[key] = one
        for extra in ("", *extras):
            if (key, extra) not in seen:
                seen.add((key, extra))
                for required, wanted in _parse_requirements(one, extra):
                    follow(required, wanted)

    follow(_OWN, ("lake",))
    if "pyarrow" not in found or "deltalake" not in found:
        raise ConfigError("executors need the extra `lake`", hint="pip install 'binlake[lake]'")
    return found


def _parse_requirements(one: Distribution, extra: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names and extras of what `extra` of a distribution requires; `""`: what it always requires."""
    for text in one.requires or ():
        only = _OF_EXTRA.search(text)
        match = _REQUIREMENT.match(text)
        if match is not None and (only.group(1) if only else "") == extra:
            yield match.group(1), tuple(filter(None, (word.strip() for word in (match.group(2) or "").split(","))))


def _forget_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
