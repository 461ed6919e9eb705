"""Programs of Binlake use Arrow without pandas, which Arrow loads for the first list it is given, if it is there.

That is 0.4 s of CPU and 40 MB for each stage and each command. Arrow looks for pandas once and remembers; here it looks
while pandas is hidden. What asks Arrow for pandas later (`to_pandas`, pyspark) still gets it. Only for a program's
start: in a process of others, Arrow would take a pandas Series for any sequence.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def import_arrow_without_pandas() -> None:
    """Have Arrow, when this process imports it, take pandas for absent; nothing where either is loaded already."""
    if "pyarrow" not in sys.modules and "pandas" not in sys.modules:
        sys.meta_path.insert(0, _ArrowFinder())


class _ArrowFinder(MetaPathFinder):
    """Finds Arrow as everybody does, and has `_LookingLoader` load it."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "pyarrow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _LookingLoader(spec.loader)
        return spec


class _LookingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        hidden = _HiddenPandas()
        sys.meta_path.insert(0, hidden)
        try:
            self._loader.exec_module(module)
            # A list makes it look.
            module.array([])
        finally:
            sys.meta_path.remove(hidden)


class _HiddenPandas(MetaPathFinder):
    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is hidden while Arrow looks for it", name=name)
        return None
