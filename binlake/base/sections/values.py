"""The common base of all sections of a replication's TOML: kebab-case keys, frozen values, no unknown keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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


class Section(BaseModel):
    """A section of the TOML."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=_to_kebab, populate_by_name=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_doubtful_values(cls, raw: object) -> object:
        if isinstance(raw, dict):
            for name, field in cls.model_fields.items():
                if field.alias != name and field.alias in raw and name in raw:
                    raise ValueError(f"`{field.alias}` is set twice, as `{field.alias}` and as `{name}`: keep one")
                if isinstance(raw.get(field.alias, raw.get(name)), bool) and field.annotation in _NUMBERS:
                    raise ValueError(f"`{field.alias or name}` is a number, not true or false")
        return raw


_NUMBERS = (int, float, int | None)


class TableName(Section):
    """A table pattern; a leading `~` makes either part a regular expression."""

    db_name: str = Field(description="database, or ~regex")
    tbl_name: str = Field(description="table, or ~regex")
