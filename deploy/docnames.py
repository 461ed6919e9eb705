"""Checks that names in docstrings and comments exist: a rename that forgets one leaves a reader searching.

Checked are names of this repository only: `Class.member` of its classes, dotted names that begin with one of its
packages, and single names in backticks that look like its own (with an underscore, or called).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LINKED = ("pump_service", "spark_jobs")  # top-level folders of packages below `binlake`
_PACKAGES = ("binlake", *_LINKED, "plugins", "deploy", "tests", "bench")
_OTHER_TEXTS = (".toml", ".proto", ".sql", ".html", ".js", ".yaml")
_COMMENT = re.compile(r"(?:^|\s)#\s.*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_MEMBER = re.compile(r"(?<![\w./`])`{0,2}([A-Z]\w*[a-z]\w*)\.([a-z_]\w*)\b(?!\.\w)")
_GROUP = re.compile(r'entry-points."([\w.]+)"')
_DOTTED = re.compile(rf"`((?:{'|'.join(_PACKAGES)})(?:\.\w+)+)(?:\(\))?`")
_SINGLE = re.compile(r"`((?:_*[a-z][a-z0-9]*(?:_[a-z0-9]+)+)|(?:_*[a-z]\w*(?=\(\))))(?:\(\))?`")


@dataclass
class _Names:
    """What the repository defines: members of each class name, each file's names, and every word of its code."""

    members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    bases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    modules: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    words: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)

    def has_member(self, name: str, member: str) -> bool:
        """Whether a class `name`, or a base of it, has `member`; classes of other projects have any."""
        if name not in self.members:
            return True
        return member in self.members[name] or any(self.has_member(base, member) for base in self.bases[name])

    def has_path(self, path: str) -> bool:
        """Whether `path` is a package, a file, a name of a file, a member of its class or a group of entry points."""
        if path in self.modules or path in self.groups or any(part.isupper() for part in path.split(".")):
            return True
        module, _, name = path.rpartition(".")
        if module in self.modules:
            return name in self.modules[module]
        module, _, owner = module.rpartition(".")
        return owner in self.modules.get(module, ()) and self.has_member(owner, name)


def find_unknown_names(root: Path) -> list[str]:
    """`file:line: name` for each name in a docstring or comment below `root` that its code does not have."""
    names, places = _Names(), []
    _add_other_texts(names, root)
    for path in _list_sources(root):
        source = path.read_text(encoding="utf-8")
        statements = list(_iterate_statements(ast.parse(source)))
        texts = _list_texts(source, statements)
        names.words |= set(_WORD.findall(_blank_out(source, statements)))
        _add_file(names, path.relative_to(root), statements)
        places += [(path.relative_to(root), line, text) for line, text in texts]
    return [f"{path}:{line}: {name}" for path, line, text in places for name in _find_unknown(names, text)]


def _list_sources(root: Path) -> list[Path]:
    files = (path for package in _PACKAGES for path in sorted((root / package).rglob("*.py")))
    return [path for path in files if "_pb2" not in path.name]


def _add_other_texts(names: _Names, root: Path) -> None:
    folders = [root / name for name in (*_PACKAGES, "proto", "sql", "dags", "replications", "examples")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in _OTHER_TEXTS]
    for path in (*files, *root.glob("*.toml"), *root.glob("Makefile")):
        text = path.read_text(encoding="utf-8")
        names.words |= set(_WORD.findall(text))
        names.groups |= set(_GROUP.findall(text))


def _iterate_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below `node`; expressions, which are most of a tree, are not visited."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from _iterate_statements(child)


def _blank_out(source: str, statements: Sequence[ast.stmt]) -> str:
    """The code of `source` without docstrings and comments."""
    lines = [_COMMENT.sub("", line) for line in source.splitlines()]
    for node in statements:
        if _find_text(node) is not None:
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines)


def _find_text(node: ast.stmt) -> str | None:
    """The text of a statement that is only a text: a docstring."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return None


def _add_file(names: _Names, path: Path, statements: Sequence[ast.stmt]) -> None:
    parts = path.with_suffix("").parts
    parts = ("binlake", *parts) if parts[0] in _LINKED else parts
    module = ".".join(part for part in parts if part != "__init__")
    for count in range(1, len(parts)):
        names.modules[".".join(parts[:count])].add(parts[count])
    names.words |= set(parts)
    names.modules[module] |= {name for node in statements for name in _list_names(node)}
    for node in statements:
        if isinstance(node, ast.ClassDef):
            inside = _iterate_statements(node)
            names.members[node.name] |= {name for one in inside for name in _list_names(one)}
            names.bases[node.name] |= {_read_last_part(base) for base in node.bases}


def _list_names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement defines, those of attributes of `self` among them."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Import() | ast.ImportFrom():
            yield from (one.asname or one.name.rpartition(".")[2] for one in node.names)
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for one in (part for target in targets for part in ast.walk(target)):
                if isinstance(one, ast.Name | ast.Attribute):
                    yield one.id if isinstance(one, ast.Name) else one.attr


def _read_last_part(base: ast.expr) -> str:
    match base:
        case ast.Subscript(value=value):
            return _read_last_part(value)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _list_texts(source: str, statements: Sequence[ast.stmt]) -> list[tuple[int, str]]:
    """Each docstring, and each comment, with its line."""
    docs = [(node.lineno, text) for node in statements if (text := _find_text(node)) is not None]
    comments = ((number, _COMMENT.search(line)) for number, line in enumerate(source.splitlines(), 1))
    return [*docs, *((number, found.group()) for number, found in comments if found)]


def _find_unknown(names: _Names, text: str) -> Iterator[str]:
    for name, member in _MEMBER.findall(text):
        if not names.has_member(name, member):
            yield f"{name}.{member}"
    yield from (path for path in _DOTTED.findall(text) if not names.has_path(path))
    yield from (single for single in _SINGLE.findall(text) if single not in names.words)
