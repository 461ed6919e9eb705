"""How values of an expression compare: texts by the weights of TiDB's collations, JSON values inside documents.

Texts are equal if their weights are equal, and sort like their weights. Collations by code points and general_ci are
supported; others need weight tables and are refused.

JSON values of different types always differ. The null of a document is a value, not NULL. Numbers keep their text, so
that `->>` shows them as TiDB does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from binlake.dialect.collations import DEFAULT_COLLATIONS
from binlake.rows.codec.jsons import quote_json
from binlake.rules.evaluate import keep_text, strip_trailing_spaces

# Each word: a character, followed by the characters with the same weight in utf8mb4_general_ci. The weight of any other
# character is its code point, or U+FFFD beyond the first plane (a test compares each with a server).
_GENERAL_CI = """
AaÀÁÂÃÄÅàáâãäåĀāĂăĄąǍǎǞǟǠǡǺǻȀȁȂȃȦȧḀḁẠạẢảẤấẦầẨẩẪẫẬậẮắẰằẲẳẴẵẶặ BbḂḃḄḅḆḇ CcÇçĆćĈĉĊċČčḈḉ DdĎďḊḋḌḍḎḏḐḑḒḓ
EeÈÉÊËèéêëĒēĔĕĖėĘęĚěȄȅȆȇȨȩḔḕḖḗḘḙḚḛḜḝẸẹẺẻẼẽẾếỀềỂểỄễỆệ FfḞḟ GgĜĝĞğĠġĢģǦǧǴǵḠḡ HhĤĥȞȟḢḣḤḥḦḧḨḩḪḫẖ
IiÌÍÎÏìíîïĨĩĪīĬĭĮįİıǏǐȈȉȊȋḬḭḮḯỈỉỊị JjĴĵǰ KkĶķǨǩḰḱḲḳḴḵ LlĹĺĻļĽľḶḷḸḹḺḻḼḽ MmḾḿṀṁṂṃ NnÑñŃńŅņŇňǸǹṄṅṆṇṈṉṊṋ
OoÒÓÔÕÖòóôõöŌōŎŏŐőƠơǑǒǪǫǬǭȌȍȎȏȪȫȬȭȮȯȰȱṌṍṎṏṐṑṒṓỌọỎỏỐốỒồỔổỖỗỘộỚớỜờỞởỠỡỢợ PpṔṕṖṗ Qq
RrŔŕŖŗŘřȐȑȒȓṘṙṚṛṜṝṞṟ SsßŚśŜŝŞşŠšſȘșṠṡṢṣṤṥṦṧṨṩẛ TtŢţŤťȚțṪṫṬṭṮṯṰṱẗ
UuÙÚÛÜùúûüŨũŪūŬŭŮůŰűŲųƯưǓǔǕǖǗǘǙǚǛǜȔȕȖȗṲṳṴṵṶṷṸṹṺṻỤụỦủỨứỪừỬửỮữỰự VvṼṽṾṿ WwŴŵẀẁẂẃẄẅẆẇẈẉẘ XxẊẋẌẍ
YyÝýÿŶŷŸȲȳẎẏẙỲỳỴỵỶỷỸỹ ZzŹźŻżŽžẐẑẒẓẔẕ ÆæǢǣǼǽ Ðð ØøǾǿ Þþ Đđ Ħħ Ĳĳ Ŀŀ Łł Ŋŋ Œœ Ŧŧ Ɓɓ Ƃƃ Ƅƅ Ɔɔ Ƈƈ Ɖɖ Ɗɗ
Ƌƌ Ǝǝ Əə Ɛɛ Ƒƒ Ɠɠ Ɣɣ Ɩɩ Ɨɨ Ƙƙ Ɯɯ Ɲɲ Ɵɵ Ƣƣ Ƥƥ Ʀʀ Ƨƨ Ʃʃ Ƭƭ Ʈʈ Ʊʊ Ʋʋ Ƴƴ Ƶƶ ƷǮǯʒ Ƹƹ Ƽƽ Ǆǅǆ Ǉǈǉ Ǌǋǌ Ǥǥ
Ǳǲǳ Ƕƕ Ƿƿ Ȝȝ Ȣȣ Ȥȥ ΑΆάαἀἁἂἃἄἅἆἇἈἉἊἋἌἍἎἏὰᾀᾁᾂᾃᾄᾅᾆᾇᾈᾉᾊᾋᾌᾍᾎᾏᾰᾱᾲᾳᾴᾶᾷᾸᾹᾺᾼ Ββϐ Γγ Δδ ΕΈέεἐἑἒἓἔἕἘἙἚἛἜἝὲῈ Ζζ
ΗΉήηἠἡἢἣἤἥἦἧἨἩἪἫἬἭἮἯὴᾐᾑᾒᾓᾔᾕᾖᾗᾘᾙᾚᾛᾜᾝᾞᾟῂῃῄῆῇῊῌ Θθϑ ΙͅΊΐΪίιϊἰἱἲἳἴἵἶἷἸἹἺἻἼἽἾἿὶιῐῑῒῖῗῘῙῚ Κκϰ Λλ Μµμ Νν Ξξ
ΟΌοόὀὁὂὃὄὅὈὉὊὋὌὍὸῸ Ππϖ ΡρϱῤῥῬ Σςσϲ Ττ ΥΎΫΰυϋύὐὑὒὓὔὕὖὗὙὛὝὟὺῠῡῢῦῧῨῩῪ Φφϕ Χχ Ψψ
ΩΏωώὠὡὢὣὤὥὦὧὨὩὪὫὬὭὮὯὼᾠᾡᾢᾣᾤᾥᾦᾧᾨᾩᾪᾫᾬᾭᾮᾯῲῳῴῶῷῺῼ ϒϓϔ Ϛϛ Ϝϝ Ϟϟ Ϡϡ Ϣϣ Ϥϥ Ϧϧ Ϩϩ Ϫϫ Ϭϭ Ϯϯ Ђђ Єє Ѕѕ ІЇії Јј
Љљ Њњ Ћћ Џџ АаӐӑӒӓ Бб Вв ГЃгѓ Дд ЕЀЁеѐёӖӗ ЖжӁӂӜӝ ЗзӞӟ ИЍиѝӢӣӤӥ Йй КЌкќ Лл Мм Нн ОоӦӧ Пп Рр Сс Тт
УЎуўӮӯӰӱӲӳ Фф Хх Цц ЧчӴӵ Шш Щщ Ъъ ЫыӸӹ Ьь ЭэӬӭ Юю Яя Ѡѡ Ѣѣ Ѥѥ Ѧѧ Ѩѩ Ѫѫ Ѭѭ Ѯѯ Ѱѱ Ѳѳ ѴѵѶѷ Ѹѹ Ѻѻ Ѽѽ Ѿѿ
Ҁҁ Ҍҍ Ҏҏ Ґґ Ғғ Ҕҕ Җҗ Ҙҙ Ққ Ҝҝ Ҟҟ Ҡҡ Ңң Ҥҥ Ҧҧ Ҩҩ Ҫҫ Ҭҭ Үү Ұұ Ҳҳ Ҵҵ Ҷҷ Ҹҹ Һһ Ҽҽ Ҿҿ Ӄӄ Ӈӈ Ӌӌ Ӕӕ ӘәӚӛ Ӡӡ
ӨөӪӫ Աա Բբ Գգ Դդ Եե Զզ Էէ Ըը Թթ Ժժ Իի Լլ Խխ Ծծ Կկ Հհ Ձձ Ղղ Ճճ Մմ Յյ Նն Շշ Ոո Չչ Պպ Ջջ Ռռ Սս Վվ Տտ Րր
Ցց Ււ Փփ Քք Օօ Ֆֆ Άά Έέ Ήή Ίί Ύύ Όό Ώώ Ⅰⅰ Ⅱⅱ Ⅲⅲ Ⅳⅳ Ⅴⅴ Ⅵⅵ Ⅶⅶ Ⅷⅷ Ⅸⅸ Ⅹⅹ Ⅺⅺ Ⅻⅻ Ⅼⅼ Ⅽⅽ Ⅾⅾ Ⅿⅿ Ⓐⓐ Ⓑⓑ Ⓒⓒ Ⓓⓓ
Ⓔⓔ Ⓕⓕ Ⓖⓖ Ⓗⓗ Ⓘⓘ Ⓙⓙ Ⓚⓚ Ⓛⓛ Ⓜⓜ Ⓝⓝ Ⓞⓞ Ⓟⓟ Ⓠⓠ Ⓡⓡ Ⓢⓢ Ⓣⓣ Ⓤⓤ Ⓥⓥ Ⓦⓦ Ⓧⓧ Ⓨⓨ Ⓩⓩ Ａａ Ｂｂ Ｃｃ Ｄｄ Ｅｅ Ｆｆ Ｇｇ Ｈｈ Ｉｉ Ｊｊ Ｋｋ
Ｌｌ Ｍｍ Ｎｎ Ｏｏ Ｐｐ Ｑｑ Ｒｒ Ｓｓ Ｔｔ Ｕｕ Ｖｖ Ｗｗ Ｘｘ Ｙｙ Ｚｚ
"""
_WEIGHTS = {ord(char): word[0] for word in _GENERAL_CI.split() for char in word[1:]}
_UNORDERED = ("latin1", "gbk", "gb18030")
"""Character sets whose texts servers order by the bytes of that encoding."""


class _Weights(dict[int, str]):
    """For str.translate: all characters beyond the first plane have the same weight."""

    def __missing__(self, code: int) -> str:
        if code <= 0xFFFF:
            raise LookupError
        return "\ufffd"


_TABLE = _Weights(_WEIGHTS)


def weigh_general_ci(text: str) -> str:
    """The weight of a text in utf8mb4_general_ci, trailing spaces included."""
    return text.translate(_TABLE)


def weigh_padded_general_ci(text: str) -> str:
    """The weight of a text in utf8mb4_general_ci for comparisons, which ignore trailing spaces."""
    return text.rstrip(" ").translate(_TABLE)


def resolve_collation(charset: str, collation: str) -> str:
    """The collation of a column; the character set's default if the definition names none."""
    return (collation or DEFAULT_COLLATIONS.get(charset, "")).lower()


def look_up_weigher(collation: str) -> Callable[[str], str] | None:
    """The function that gives the weight of a text for comparisons; None = unknown collation."""
    if collation.endswith("general_ci"):
        return weigh_padded_general_ci if collation.startswith("utf8") else None
    if not collation.endswith("_bin"):
        return None
    return keep_text if collation.endswith("0900_bin") else strip_trailing_spaces


def look_up_letter_weigher(collation: str) -> Callable[[str], str] | None:
    """The weight function for LIKE, which compares letter by letter without padding; None = unknown collation."""
    known = look_up_weigher(collation)
    return None if known is None else weigh_general_ci if collation.endswith("general_ci") else keep_text


def has_order(collation: str) -> bool:
    """True if texts of the collation are ordered by their weights."""
    return not collation.startswith(_UNORDERED)


class _Null:
    """The null of a document."""

    def __reduce__(self) -> str:
        return "JSON_NULL"


JSON_NULL = _Null()


class _Number(str):
    """A number as the document writes it."""

    __slots__ = ()


def find_value(path: tuple[str | int, ...], text: str) -> Any:
    """The value at `path` (names and array indexes) of the document `text`; None if there is none."""
    value = json.loads(text, parse_int=_Number, parse_float=_Number)
    for leg in path:
        if isinstance(leg, str):
            if not isinstance(value, dict) or leg not in value:
                return None
            value = value[leg]
        elif isinstance(value, list):
            if leg >= len(value):
                return None
            value = value[leg]
        elif leg:  # The [0] of a value that is not an array is the value itself.
            return None
    return JSON_NULL if value is None else value


def equals(constant: str | float, value: Any) -> bool:
    """Whether a document's value equals a constant text or number."""
    if isinstance(constant, str):
        return type(value) is str and value == constant
    return isinstance(value, _Number) and float(value) == constant


def unquote(value: Any) -> str:
    """The operator ->>: a text without its quotes, any other value as the document shows it."""
    return value if type(value) is str else _format_document(value)


def _format_document(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str):
        return quote_json(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_format_document, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quote_json(key)}: {_format_document(part)}" for key, part in value.items()) + "}"
    return "null" if value is None or value is JSON_NULL else "true" if value else "false"
