"""`make lint`: checks style, types and import rules, and that generated files are up to date.

`python -m deploy.checks` runs all checks and prints the result of each; `proto` and `docs` write the generated files.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from binlake.config.command import render_reference
from binlake.lake.reference import replace_tables_section
from binlake.pump_service.feeder.settings import render_settings as feeder_text
from binlake.pump_service.pump.settings import render_settings
from deploy import citations, docnames, docslinks, promises
from deploy.grafana.boards import BOARDS, render_board, write_boards
from deploy.importgraph import derive_package_edges, find_circles, import_edges

ROOT = Path(__file__).resolve().parents[1]
PROTO = Path("binlake/wire")
_STUBS = ("cistern", "clock", "pd", "pump")  # services whose generated stubs are used, the first and last only by tests
REFERENCE = ROOT / "docs" / "reference" / "configuration.md"
GRAFANA = ROOT / "deploy" / "grafana"
TABLES = ROOT / "docs" / "reference" / "lake-tables.md"
PAPERS = ROOT.parent / "shared"
PROMISES = ROOT / promises.PAGE
_CITING = (
    "binlake",
    "pump_service",
    "spark_jobs",
    "plugins",
    "dags",
    "deploy",
    "tests",
    "bench",
    "docs",
    "sql",
    "proto",
)
_TEXT = frozenset({".py", ".md", ".sql", ".proto", ".html", ".toml"})


class CheckError(Exception):
    """A check failed; the text says what it found."""


def main(arguments: list[str]) -> int:
    """Run all checks, or generate what `arguments` name (`proto`, `docs`); returns the exit status."""
    if arguments:
        for name in arguments:
            MAKERS[name]()
        return 0
    failed = [name for name, check in CHECKS.items() if not _passes(name, check)]
    if failed:
        print(f"lint: {len(failed)} of {len(CHECKS)} checks failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _passes(name: str, check: Callable[[], None]) -> bool:
    began = time.monotonic()
    try:
        check()
    except CheckError as error:
        print(f"lint: {name}: {error}", file=sys.stderr, flush=True)
        return False
    print(f"lint: {name}: ok ({time.monotonic() - began:.1f} s)", flush=True)
    return True


def _build_tool_check(*command: str) -> Callable[[], None]:
    def check() -> None:
        program = Path(sysconfig.get_path("scripts")) / command[0]
        done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CheckError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")

    return check


def generate(folder: Path) -> None:
    """Generate the messages and stubs of all proto files below `folder`. Raises CheckError."""
    sources = [str(path.relative_to(ROOT / "proto")) for path in sorted((ROOT / "proto" / PROTO).glob("*.proto"))]
    outputs = [f"--{kind}={folder}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *outputs, *sources]
    done = subprocess.run(command, cwd=ROOT / "proto", capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(done.stderr.strip())


def check_generated() -> None:
    """Check that the committed modules match the proto files."""
    with tempfile.TemporaryDirectory(prefix="binlake-proto-") as scratch:
        generate(Path(scratch))
        stale = [name for name in _list_committed() if not _is_same(Path(scratch) / name, ROOT / name)]
    if stale:
        raise CheckError(f"run `make proto`: {', '.join(stale)}")


def _list_committed() -> list[str]:
    # Stubs of services that nobody uses are not committed.
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / PROTO).glob("*_pb2*.py*"))


def _is_same(generated: Path, committed: Path) -> bool:
    return generated.exists() and generated.read_bytes() == committed.read_bytes()


def write_proto() -> None:
    """Replace the committed modules by those generated from the proto files."""
    with tempfile.TemporaryDirectory(prefix="binlake-proto-") as scratch:
        generate(Path(scratch))
        for generated in sorted((Path(scratch) / PROTO).iterdir()):
            committed = ROOT / PROTO / generated.name
            if generated.name.removesuffix("_pb2_grpc.py") in _STUBS or not generated.name.endswith("_grpc.py"):
                committed.write_bytes(generated.read_bytes())
                print(f"proto: {PROTO / generated.name}")


def write_reference() -> None:
    """Write docs/reference/configuration.md, the tables of docs/reference/lake-tables.md, and Grafana's boards."""
    REFERENCE.write_text(render_configuration(), encoding="utf-8")
    TABLES.write_text(replace_tables_section(TABLES.read_text(encoding="utf-8")), encoding="utf-8")
    written = [REFERENCE, TABLES, *write_boards(GRAFANA)]
    print(f"docs: {', '.join(str(path.relative_to(ROOT)) for path in written)}")


def check_reference() -> None:
    """Check that the pages on the configuration and on the lake's tables, and Grafana's boards, match their sources."""
    if not REFERENCE.exists() or REFERENCE.read_text(encoding="utf-8") != render_configuration():
        raise CheckError("docs/reference/configuration.md is out of date: run `make docs`")
    page = TABLES.read_text(encoding="utf-8")
    if page != replace_tables_section(page):
        raise CheckError("docs/reference/lake-tables.md is out of date: run `make docs`")
    for board in BOARDS:
        path = GRAFANA / f"{board.name}.json"
        if not path.exists() or path.read_text(encoding="utf-8") != render_board(board):
            raise CheckError(f"deploy/grafana/{path.name} is out of date: run `make docs`")


def render_configuration() -> str:
    """The text of docs/reference/configuration.md, generated from the models."""
    return f"{render_reference()}\n{render_settings()}\n{feeder_text()}"


def check_circles() -> None:
    """Check that no files and no packages import each other in a circle."""
    edges = import_edges()
    cycles = [" -> ".join(circle) for circle in [*find_circles(edges), *find_circles(derive_package_edges(edges))]]
    if cycles:
        raise CheckError("these import each other:\n  " + "\n  ".join(cycles))


def check_ids() -> None:
    """Check that docs/reference/promises.md lists every id that code, tests or docs cite, and is complete."""
    page = promises.read_page(PROMISES.read_text(encoding="utf-8"))
    known = {*page.kept, *page.untested}
    unknown = [f"{where}: {cited}: not on the page" for where, cited in _find_citations() if cited not in known]
    tests = (path for path in _list_citing_files() if path.is_relative_to(ROOT / "tests"))
    problems = [*unknown, *promises.find_problems(page, promises.read_cited_ids(tests))]
    if problems:
        raise CheckError(f"{promises.PAGE}:\n  " + "\n  ".join(problems))


def _find_citations() -> Iterator[tuple[str, str]]:
    for path in _list_citing_files():
        if path != PROMISES:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                yield from ((f"{path.relative_to(ROOT)}:{number}", cited) for cited in promises.ID.findall(line))


def _list_citing_files() -> list[Path]:
    """The files whose citations are checked."""
    files = (path for room in _CITING for path in (ROOT / room).rglob("*"))
    return sorted(path for path in files if path.suffix in _TEXT)


def check_citations() -> None:
    """Check that each cited part of a paper is listed, has a section that says what it is, and is in the paper."""
    unlisted = citations.find_unlisted(ROOT, _list_citing_files())
    if unlisted:
        raise CheckError(f"not on {citations.PAGE}:\n  " + "\n  ".join(unlisted))
    unexplained = citations.find_unexplained(ROOT)
    if unexplained:
        raise CheckError(f"only on one of {citations.PAGE} and {citations.SUMMARIES}:\n  " + "\n  ".join(unexplained))
    if not PAPERS.is_dir():
        print(f"lint: citations: the papers are not in {PAPERS}: not checked whether they contain what is listed")
        return
    missing = [*citations.find_missing(ROOT, PAPERS), *citations.find_missing_ids(PROMISES, PAPERS)]
    if missing:
        raise CheckError(f"not in the papers of {PAPERS}: {', '.join(missing)}")
    mission = (PAPERS / "MISSION.md").read_text(encoding="utf-8")
    left_out = promises.find_missing(mission, promises.read_page(PROMISES.read_text(encoding="utf-8")))
    if left_out:
        raise CheckError(f"in the mission and not on {promises.PAGE}: {', '.join(left_out)}")


def check_links() -> None:
    """Check that links and paths on the pages exist, the site lists each page once, and no table holds a paragraph."""
    problems = [
        *(f"left of a merge: {place}" for place in docslinks.find_merge_marks(ROOT)),
        *(f"broken link: {link}" for link in docslinks.find_dead_links(ROOT)),
        *(f"no such file: {path}" for path in docslinks.find_dead_paths(ROOT)),
        *(f"not in the nav of zensical.toml exactly once: {page}" for page in docslinks.find_unlisted(ROOT)),
        *(f"a paragraph in a table cell: {place}" for place in docslinks.find_long_cells(ROOT)),
    ]
    if problems:
        raise CheckError("\n  ".join(["", *problems]))


def check_names() -> None:
    """Check that names in docstrings and comments exist, and that no function is named make_: it is build_."""
    files = (path for path in _list_citing_files() if path.suffix == ".py")
    if made := [
        f"{path.relative_to(ROOT)}: {name}" for path in files for name in find_made_names(path.read_text("utf-8"))
    ]:
        raise CheckError("see the verbs of CONTRIBUTING.md:\n  " + "\n  ".join(made))
    if unknown := docnames.find_unknown_names(ROOT):
        raise CheckError("docstrings or comments name what does not exist:\n  " + "\n  ".join(unknown))


def find_made_names(source: str) -> list[str]:
    """The functions of `source` that are named make_."""
    return re.findall(r"^\s*(?:async )?def (_*make_\w+)", source, re.MULTILINE)


def check_class_names() -> None:
    """Check that no two public classes outside tests and generated files share a name: a reader searches by name."""
    names = ((path.relative_to(ROOT).as_posix(), path) for path in _list_citing_files() if path.suffix == ".py")
    sources = {name: path.read_text("utf-8") for name, path in names if not name.startswith("tests/")}
    if same := find_repeated_classes({name: text for name, text in sources.items() if "_pb2" not in name}):
        raise CheckError("classes of the same name:\n  " + "\n  ".join(same))


def find_repeated_classes(sources: Mapping[str, str]) -> list[str]:
    """`class: files` for each public class that several of `sources` (by the file's name) define."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, text in sources.items():
        for one in re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE):
            places[one].append(name)
    return [f"{one}: {', '.join(names)}" for one, names in sorted(places.items()) if len(names) > 1]


def check_test_names(tests: Path = ROOT / "tests") -> None:
    """Check that no two test files share a name: pytest imports them as top-level modules, so only one would run."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(tests.rglob("test_*.py")):
        places[path.name].append(path.relative_to(tests.parent).as_posix())
    if same := [f"{', '.join(paths)}: rename all but one" for paths in places.values() if len(paths) > 1]:
        raise CheckError("\n  ".join(["", *same]))


CHECKS: dict[str, Callable[[], None]] = {
    "ruff": _build_tool_check("ruff", "check", "."),
    "format": _build_tool_check("ruff", "format", "--check", "."),
    "types": _build_tool_check("mypy"),
    "imports": _build_tool_check("lint-imports", "--no-logo"),
    "circles": check_circles,
    "generated": check_generated,
    "configuration": check_reference,
    "ids": check_ids,
    "citations": check_citations,
    "links": check_links,
    "names": check_names,
    "class names": check_class_names,
    "test names": check_test_names,
}
MAKERS: dict[str, Callable[[], None]] = {"proto": write_proto, "docs": write_reference}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
