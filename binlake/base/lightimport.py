"""Programs of Binlake load packages without imports that they never use: half of what a program's start costs.

Arrow looks for pandas when it is given its first list, once, and remembers (0.4 s of CPU and 40 MB). structlog loads
rich for pictures of exceptions, which no program of ours shows (`binlake/base/logs.py`). httpx loads click, and with it
rich and pygments, for a command line of its own. Each is hidden while the one package that looks for it is loaded: who
asks later (`to_pandas`, pyspark, `print_table`) gets it. Only for a program's start: in a process of others, Arrow
would take a pandas Series for any sequence, and their logs would lose the pictures.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_IN_VAIN = {"pyarrow": "pandas", "structlog": "rich", "httpx": "click"}


def import_lightly() -> None:
    """Make unused imports of each package that this process imports from now on look absent."""
    for package, vain in _IN_VAIN.items():
        if package not in sys.modules and vain not in sys.modules:
            sys.meta_path.insert(0, _PackageFinder(package))


class _PackageFinder(MetaPathFinder):
    """Finds one package as everybody does, once, and has `_LightLoader` load it."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.package:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _LightLoader(spec.loader)
        return spec


class _LightLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with _hidden(_IN_VAIN[module.__name__]):
            self._loader.exec_module(module)
            if module.__name__ == "pyarrow":
                # A list makes it look.
                module.array([])


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    finder = _HidingFinder(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _HidingFinder(MetaPathFinder):
    """Has one package be absent, for the thread that made this."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._thread = threading.get_ident()

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name == self._package and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is hidden from the package that is being loaded", name=name)
        return None
