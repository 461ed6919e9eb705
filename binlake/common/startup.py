"""Makes the start of Binlake's own programs cheap: few garbage collections, and no imports that they never use.

The start of a program creates 270,000 objects, of modules and classes, and a fifth of its CPU time went to collections
(2.65 s; 2.3 s with these thresholds; 2.1 s without any collection). A pump holds many prewrites that wait for their
commit, and a full collection stopped every writer for 30 ms (measured with 256 writers).

The end of a program searches all objects for cycles several times: 0.44 s of CPU for the process of a window, 0.05 s
without (2026-11-29). Its memory is freed anyway, so nothing may depend on an object in a cycle being finalized there.

Imports: Arrow looks for pandas once, when it gets its first list, and remembers the result (0.4 s of CPU and 40 MB).
structlog loads rich to format exceptions, which no program of Binlake does (`logs.py`). httpx loads click,
and with it rich and pygments, for its command line. Each of these imports is hidden while the package that looks for it
is loaded, which halves the cost of a start; later imports (`to_pandas`, pyspark, `print_table`) find it. Only for the
start of Binlake's own programs: in another program's process, Arrow would treat a pandas Series as any sequence, and
logs would lose rich's format.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

THRESHOLDS = (20_000, 20, 50)
"""New objects, collections of the youngest and of the middle generation, before the next generation is collected."""


def collect_rarely() -> None:
    """Set THRESHOLDS for this process, which collects nothing when it ends; to be called as early as possible."""
    gc.set_threshold(*THRESHOLDS)
    # Registered first, so it runs after all other functions that are called at the end.
    atexit.register(gc.freeze)


_UNUSED_IMPORTS = {"pyarrow": "pandas", "structlog": "rich", "httpx": "click"}


def import_lightly() -> None:
    """Hide the unused imports of each package that this process imports from now on."""
    for package, unused in _UNUSED_IMPORTS.items():
        if package not in sys.modules and unused not in sys.modules:
            sys.meta_path.insert(0, _PackageFinder(package))


class _PackageFinder(MetaPathFinder):
    """Finds one package in the normal way, once, and lets `_LightLoader` load it."""

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
        with _hide(_UNUSED_IMPORTS[module.__name__]):
            self._loader.exec_module(module)
            if module.__name__ == "pyarrow":
                # Arrow looks for pandas when it converts a list.
                module.array([])


@contextmanager
def _hide(package: str) -> Iterator[None]:
    finder = _HidingFinder(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _HidingFinder(MetaPathFinder):
    """Hides one package from the thread that created this object."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._thread = threading.get_ident()

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name == self._package and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is hidden from the package that is being loaded", name=name)
        return None
