"""Finds import cycles between files and between packages: code in a cycle cannot be read or moved separately.

Imports only for types and imports inside functions count too, because they also couple the code for a reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count

import grimp

ROOTS = ("binlake", "binlake_airflow", "deploy")
Edges = Mapping[str, set[str]]


def import_edges() -> dict[str, set[str]]:
    """For each module of the repository, the modules of the repository that it imports."""
    graph = grimp.build_graph(*ROOTS, exclude_type_checking_imports=False, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def derive_package_edges(edges: Edges) -> dict[str, set[str]]:
    """The same between the packages (and single files) directly below one common package."""
    between: dict[str, set[str]] = {}
    for module, imported in edges.items():
        for other in imported:
            own, its = _find_below_common(module.split("."), other.split("."))
            if own and its:
                between.setdefault(own, set()).add(its)
    return between


def _find_below_common(module: list[str], other: list[str]) -> tuple[str, str]:
    """The packages or files directly below the last common package of two modules; empty if there is none.

    A package's `__init__` belongs to no folder below the package, because it may re-export their names.
    """
    common = next((n for n, (one, two) in enumerate(zip(module, other, strict=False)) if one != two), None)
    return ("", "") if not common else (".".join(module[: common + 1]), ".".join(other[: common + 1]))


def find_circles(edges: Edges) -> list[list[str]]:
    """Groups of two or more that import each other, directly or indirectly; sorted."""
    search = _Search(edges)
    return sorted(sorted(group) for group in search.find_groups() if len(group) > 1)


class _Search:
    """Tarjan's search for strongly connected components, without recursion."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._number: dict[str, int] = {}
        self._least: dict[str, int] = {}
        self._open: list[str] = []
        self._numbers = count()

    def find_groups(self) -> Iterable[list[str]]:
        """Each component once."""
        for start in sorted(self._edges):
            if start not in self._number:
                yield from self._find_components_from(start)

    def _find_components_from(self, start: str) -> Iterable[list[str]]:
        path = [(start, iter(self._enter(start)))]
        while path:
            node, following = path[-1]
            unseen = self._find_next_unseen(node, following)
            if unseen is not None:
                path.append((unseen, iter(self._enter(unseen))))
                continue
            path.pop()
            if path:
                self._least[path[-1][0]] = min(self._least[path[-1][0]], self._least[node])
            if self._least[node] == self._number[node]:
                yield self._close(node)

    def _enter(self, node: str) -> list[str]:
        self._number[node] = self._least[node] = next(self._numbers)
        self._open.append(node)
        return sorted(self._edges.get(node, ()))

    def _find_next_unseen(self, node: str, following: Iterable[str]) -> str | None:
        for other in following:
            if other not in self._number:
                return other
            if other in self._open:
                self._least[node] = min(self._least[node], self._number[other])
        return None

    def _close(self, node: str) -> list[str]:
        at = self._open.index(node)
        group, self._open[at:] = self._open[at:], []
        return group
