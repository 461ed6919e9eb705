"""Character sets: every code of every character set is decoded as a real server reads it."""

from __future__ import annotations

import pytest
from support.mariadb import MariaDb, MySql, execute, rows

from binlake.errors import SchemaError
from binlake.mysqlbinlog.charsets import build_utf8_writer, find_decoder, has_ascii, replace_missing_letters

_CODES = [
    *(bytes((one,)) for one in range(256)),
    *(bytes((one, two)) for one in range(0x81, 0xFF) for two in range(0x40, 0xFF)),
    *(bytes((0x8F, one, two)) for one in range(0xA1, 0xFF) for two in range(0xA1, 0xFF)),
    *(bytes((0x81, one, two, three)) for one in (0x30, 0x35) for two in (0x81, 0xF4) for three in range(0x30, 0x3A)),
]
_NO_LETTER = "\ufffd"


def _decoded(charset: str, code: bytes) -> str | None:
    decode = find_decoder(charset)
    assert decode is not None
    try:
        return decode(code)
    except UnicodeDecodeError:
        return None


@pytest.mark.mariadb
@pytest.mark.long
def test_codes_of_all_charsets_equal_the_servers(mysql: MySql) -> None:
    execute(mysql, "DROP DATABASE IF EXISTS codes", "CREATE DATABASE codes")
    values = ", ".join(f"(X'{code.hex()}')" for code in _CODES)
    execute(mysql, "CREATE TABLE codes.code (code VARBINARY(4))", f"INSERT INTO codes.code VALUES {values}")
    asked = 0
    for charset, size in rows(mysql, "SELECT character_set_name, maxlen FROM information_schema.character_sets"):
        if find_decoder(charset) is None or not has_ascii(charset):
            continue
        shown = f"SELECT code, HEX(CONVERT(CONVERT(code USING {charset}) USING utf8mb4)) FROM codes.code"
        shown += f" WHERE LENGTH(code) <= {size}"
        for code, letters in rows(mysql, shown):
            letter = bytes.fromhex(letters or "").decode()
            # The server shows damaged codes as a question mark, or with one.
            if len(letter) == 1 and letter != _NO_LETTER and (letter != "?" or code == b"?"):
                assert _decoded(charset, code) == letter, (charset, code)
                asked += 1
    assert asked > 90_000
    execute(mysql, "DROP DATABASE codes")


@pytest.mark.mariadb
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_letters_that_a_charset_lacks_become_question_marks_as_at_the_servers(
    name: str, step: int, request: pytest.FixtureRequest
) -> None:
    server: MariaDb = request.getfixturevalue(name)
    execute(server, "DROP DATABASE IF EXISTS codes", "CREATE DATABASE codes CHARACTER SET utf8mb4")
    execute(server, "CREATE TABLE codes.letter (l VARCHAR(1) COLLATE utf8mb4_bin)")
    letters = [*"€ß中ー￣¥‾‖−〜ٹڈͺ₯\ufffd晙晡碁銹\ue000\uf8f0😀𠀀", *map(chr, range(0x80, 0xD800, step))]
    values = ", ".join(f"(X'{letter.encode().hex()}')" for letter in letters)
    execute(server, f"INSERT INTO codes.letter VALUES {values}")
    for (charset,) in rows(server, "SELECT character_set_name FROM information_schema.character_sets"):
        if find_decoder(charset) is None:
            continue
        shown = f"SELECT HEX(l), HEX(CONVERT(CONVERT(l USING {charset}) USING utf8mb4)) FROM codes.letter"
        for pair in rows(server, shown):
            letter, stored = (bytes.fromhex(text).decode() for text in pair)
            assert replace_missing_letters(charset, letter) == stored, (charset, letter)
    execute(server, "DROP DATABASE codes")


def test_letters_of_an_unknown_charset_are_not_guessed() -> None:
    assert replace_missing_letters("armscii8", "abc") == "abc"
    with pytest.raises(LookupError, match="armscii8"):
        replace_missing_letters("armscii8", "é")


@pytest.mark.parametrize("charset", ["eucjpms", "armscii8", "new"])
def test_unsupported_charsets_are_refused(charset: str) -> None:
    with pytest.raises(SchemaError, match=f"texts of the charset {charset} cannot be replicated"):
        build_utf8_writer(charset)


@pytest.mark.parametrize(
    ("charset", "letters"),
    [("ucs2", "aä中"), ("utf16", "a😀"), ("utf16le", "a😀"), ("utf32", "a😀"), ("latin1", "a€\x81ß"), ("gbk", "中文")],
)
def test_letters_are_decoded(charset: str, letters: str) -> None:
    codec = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}.get(
        charset, charset
    )
    raw = b"a\x80\x81\xdf" if charset == "latin1" else letters.encode(codec)
    write = build_utf8_writer(charset)
    assert write is not None
    assert write(raw) == letters.encode()


def test_damaged_text_is_an_error() -> None:
    write = build_utf8_writer("big5")
    assert write is not None
    with pytest.raises(UnicodeDecodeError):
        write(b"a\xf9")
