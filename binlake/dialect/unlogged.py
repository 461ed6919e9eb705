"""Which expressions depend on a variable of the session that computes them, and that is not known from the log.

Another session of the same server may compute other values: 10 / 3 is 3.3333 or 3.333333333. The list was measured, one
variable at a time, in stored generated columns of MySQL and MariaDB (tests/dialect/test_unlogged_variables.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from binlake.dialect.tokens import Token, TokenKind, find_closing, split_list, tokenize

_OF_FUNCTIONS = {
    "DAYNAME": "lc_time_names", "MONTHNAME": "lc_time_names", "TO_CHAR": "lc_time_names",
    "AES_ENCRYPT": "block_encryption_mode", "AES_DECRYPT": "block_encryption_mode",
}  # fmt: skip
_OF_MARIADB = {
    word: "default_regex_flags" for word in ("REGEXP", "RLIKE", "REGEXP_REPLACE", "REGEXP_INSTR", "REGEXP_SUBSTR")
}
CHARSET = "character_set_connection"
_INTRODUCED = re.compile("_(?!utf8|binary)[a-z0-9]+", re.IGNORECASE)
_LOST = re.compile(r"[^\x00-\x7f]|\?")
"""A MySQL shows `?` for a character of a literal that has another character set than UTF-8."""
_NAMES_OF_DAYS = re.compile("%[abMW]")


def find_unlogged_variable(expression: str, family: str) -> str:
    """The session variable on which a server of `family` lets `expression` depend; "" if there is none."""
    return next(_list_variables(tokenize(expression), family), "")


def _list_variables(tokens: Sequence[Token], family: str) -> Iterator[str]:
    words = _OF_FUNCTIONS | (_OF_MARIADB if family == "mariadb" else {})
    for at, token in enumerate(tokens):
        if token.is_mark("/"):
            yield "div_precision_increment"
        elif family == "mysql" and token.kind is TokenKind.STRING and at and _INTRODUCED.fullmatch(tokens[at - 1].text):
            if _LOST.search(token.value):
                yield CHARSET
        elif token.kind is TokenKind.WORD and token.text.upper() in words:
            yield words[token.text.upper()]
        elif token.is_word("DATE_FORMAT", "WEEK") and at + 1 < len(tokens) and tokens[at + 1].is_mark("("):
            arguments = split_list(tokens[at + 2 : find_closing(tokens, at + 1)])
            if token.is_word("WEEK") and len(arguments) == 1:
                yield "default_week_format"
            elif token.is_word("DATE_FORMAT") and (len(arguments) != 2 or _names_days(arguments[1])):
                yield "lc_time_names"
        elif token.is_word("WEEK") and at and tokens[at - 1].is_mark("("):  # EXTRACT(WEEK FROM day)
            yield "default_week_format"


def _names_days(form: Sequence[Token]) -> bool:
    """Whether the format of a DATE_FORMAT has names of days or months, or may have them."""
    *charset, text = form
    is_literal = text.kind is TokenKind.STRING and all(token.kind is TokenKind.WORD for token in charset)
    return not is_literal or bool(_NAMES_OF_DAYS.search(text.value))
