"""The configuration reference in Markdown, generated from the model so that it is always up to date."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from binlake.base.sections.values import TableName
from binlake.config.model import Replication

_HEAD = """# Configuration reference

Made by `make docs` from `binlake/config/model.py`; a test fails when the two differ. One TOML file in
`replications/` is one replication. Unknown keys are errors. Passwords: `env:NAME` reads the environment.
A file `feeds/NAME/ID.toml` beside it is one more section `[[feed]]` of it ([feeds](../operate/feeds.md)).

`binlake config check FILE` reads a file without its secrets and reports all mistakes at once: numbers that
are not a commit_ts, stops that do not ascend, invalid addresses, schedules, paths and names, patterns, events and
expressions that cannot be parsed, notifiers that cannot be imported on this machine. It prints the settings in force,
defaults included, with `***` for passwords and arguments of notifiers. Stages and DAGs refuse the same mistakes,
except for the notifiers."""


def reference_text() -> str:
    """The reference of a replication."""
    return model_text(_HEAD, Replication)


def model_text(head: str, model: type[BaseModel]) -> str:
    """`head`, then a table of keys for each section of `model`."""
    return "\n".join([head, *_section("", model), ""])


def _section(name: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"\n## `[{name}]`" if name else "\n## Top level"
    yield f"\n{(model.__doc__ or '').strip()}\n"
    yield "| Key | Default | Meaning |\n|---|---|---|"
    nested = []
    for field_name, field in model.model_fields.items():
        key = field.alias or field_name
        inner, repeated = _inner_model(field.annotation), _repeated_model(field.annotation)
        place = f"{name.strip('[]')}.{key}" if name else key
        if inner is not None:
            nested.append((place, inner))
            continue
        if repeated is not None and repeated is not TableName:
            nested.append((f"[{place}]", repeated))
            continue
        yield f"| `{key}` | {_default(field.default)} | {field.description or ''} |"
    for key, inner in nested:
        yield from _section(key, inner)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    # `isinstance(..., type)` is also true of `tuple[X, ...]`.
    plain = (o for o in options if get_origin(o) is None and isinstance(o, type))
    return next((o for o in plain if issubclass(o, BaseModel)), None)


def _repeated_model(annotation: Any) -> type[BaseModel] | None:
    """The model of a list of tables, `[[name]]` in TOML."""
    return _inner_model(get_args(annotation)[0]) if get_origin(annotation) is tuple else None


def _default(value: object) -> str:
    if value is None:
        return "none"
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`" if value else "none"
    if isinstance(value, str):
        # Write line ends as TOML does.
        value = value.replace("\r", "\\r").replace("\n", "\\n")
    return "`true`" if value is True else "`false`" if value is False else f"`{value}`" if value != "" else "empty"
