"""The result of each mutant, on disk: an interrupted run can be resumed, and killed mutants are not tried again."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deploy.mutation.operators import compute_digest

ROOT = Path(__file__).resolve().parents[2]
_LISTS = Path("deploy") / "mutation"


@dataclass(frozen=True)
class Module:
    """A module of `modules.toml`: its `path` and the files of `tests` that must notice a change.

    `without`: tests of these files to leave out, for example because they stop a server that later tests need.
    """

    root: Path
    path: str
    tests: tuple[str, ...]
    without: tuple[str, ...]

    @property
    def text(self) -> str:
        """The module's source."""
        return (self.root / self.path).read_text(encoding="utf-8")

    @property
    def explained(self) -> dict[str, str]:
        """Mutants that need no test, and why (`explained.toml`)."""
        listed = _list(self.root, "explained").get(self.path, {})
        return {str(mutant): str(reason) for mutant, reason in listed.items()}

    @property
    def tests_digest(self) -> str:
        """A digest of the tests' names and files, and of the helper modules in their folders and tests/support."""
        folders = [*((self.root / test).parent for test in self.tests), self.root / "tests" / "support"]
        files = {path for folder in folders for path in folder.rglob("*.py")}
        texts = (path.read_text(encoding="utf-8") for path in sorted(files))
        return compute_digest("".join([*self.tests, *self.without, *texts]))

    @property
    def results(self) -> Path:
        """The file with the module's results."""
        return self.root / ".local" / "mutation" / f"{self.path.replace('/', '.')}.json"


def list_modules(root: Path = ROOT) -> list[Module]:
    """All modules of `modules.toml`."""
    all_modules = []
    for path, listed in _list(root, "modules").items():
        tests = tuple(one for one in listed if "::" not in one)
        all_modules.append(Module(root, path, tests, tuple(one for one in listed if "::" in one)))
    return all_modules


@dataclass
class Results:
    """The results of one module: which test killed each mutant ('' for a survivor), by the mutant's key.

    `source` and `tests` are digests. If the source has changed, all results are discarded; if only the tests have
    changed, the survivors are.
    """

    source: str
    tests: str
    killed_by: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, module: Module, source: str, tests: str = "") -> Results:
        """The results of an earlier run, as far as they are still valid; without `tests`, for any tests."""
        if not module.results.exists():
            return cls(source, tests)
        earlier = json.loads(module.results.read_text(encoding="utf-8"))
        if earlier["source"] != source:
            return cls(source, tests)
        same = tests in ("", earlier["tests"])
        killed = {key: by for key, by in earlier["killed_by"].items() if by or same}
        return cls(source, tests, killed)

    def write(self, module: Module) -> None:
        """Write them for the next run."""
        module.results.parent.mkdir(parents=True, exist_ok=True)
        module.results.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def _list(root: Path, name: str) -> dict[str, Any]:
    entries: dict[str, Any] = tomllib.loads((root / _LISTS / f"{name}.toml").read_text(encoding="utf-8"))
    return entries
