"""The common base of all sections of a replication's TOML: kebab-case keys, frozen values, no unknown keys."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

TsText = Annotated[str, Field(pattern=r"^(-1|[0-9]{1,20})$")]
"""A commit_ts as decimal text, or -1."""
PlaceText = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,19}$")]
"""A commit_ts of the source, above 0, as decimal text."""


def _to_kebab(name: str) -> str:
    return name.replace("_", "-")


def _split_comma_list(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


NameList = Annotated[tuple[str, ...], BeforeValidator(_split_comma_list)]
"""Names as a list or as text with commas."""


_WITH_PORT = re.compile(r"[^:]*:[0-9]*|\[.*\](:[0-9]*)?")
"""An address of IPv6 has more than one colon, and no brackets."""


def _require_host(host: str) -> str:
    # A port or a scheme would be looked up as a part of the name.
    if "/" in host:
        raise ValueError("it must be a host name or address, without a scheme and a path")
    if _WITH_PORT.fullmatch(host):
        raise ValueError("it must be a host name or address alone: the port has its own key, `port`")
    return host


HostText = Annotated[str, AfterValidator(_require_host)]
"""The name or address of a host."""


class Section(BaseModel):
    """A section of the TOML."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=_to_kebab, populate_by_name=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_pydantic_accepts(cls, raw: object) -> object:
        """Both spellings of one key, of which one would win, and booleans as numbers."""
        if isinstance(raw, dict):
            for name, field in cls.model_fields.items():
                if field.alias != name and field.alias in raw and name in raw:
                    raise ValueError(f"`{field.alias}` is given twice: also as `{name}`")
                if isinstance(raw.get(field.alias, raw.get(name)), bool) and field.annotation in _NUMBERS:
                    raise ValueError(f"`{field.alias or name}` is a number, not true or false")
        return raw


_NUMBERS = (int, float, int | None)


class TableName(Section):
    """A table pattern; a leading `~` makes either part a regular expression."""

    db_name: str = Field(description="database, or ~regex")
    tbl_name: str = Field(description="table, or ~regex")
