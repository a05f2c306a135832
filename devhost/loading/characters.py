"""Characters that look like those of YAML but are others: mostly copied from a web page."""

from typing import Final

_QUOTES: Final = "\u201c\u201d\u201e\u201f\u2018\u2019\u201a\u201b\u00ab\u00bb\u2033\u2032"
_DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2022"
_COLONS: Final = "\uff1a\ufe30\ufe55"


def odd_character(line: str) -> tuple[int, str] | None:
    """Return the index of the first such character in a line, and the message."""
    text = line.split(" #", maxsplit=1)[0]
    if text.isascii() or text.lstrip().startswith("#"):
        return None
    import unicodedata  # noqa: PLC0415 (a megabyte that a valid file does not need)

    begin = len(text) - len(text.lstrip(" -"))
    for index, character in enumerate(text):
        if character.isascii():
            continue
        code = f"U+{ord(character):04X}"
        if unicodedata.category(character) in ("Zs", "Cf") or character == "\ufeff":
            name = unicodedata.name(character, "an invisible character").lower()
            return index, f"{name} ({code}), which YAML does not take for a space"
        if character in _QUOTES:
            return index, f"{character} ({code}) is no quote; write \" or '"
        if character in _DASHES and index == begin and text[index + 1 : index + 2] == " ":
            return index, f"{character} ({code}) is no list item; write -"
        if character in _COLONS:
            return index, f"{character} ({code}) is no colon; write ': '"
    return None
