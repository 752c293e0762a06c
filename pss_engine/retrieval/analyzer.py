"""Text to search terms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

_FUNCTION_WORDS = (
    "a an and are as at be but by for from had has have he her his i if in into is it its my no not of on or our she so"
    " than that the their them then there these they this to was we were what when which who will with you your"
)
ENGLISH_STOPWORDS = frozenset(_FUNCTION_WORDS.split())

_IDENTIFIER = re.compile(r"\w+(?:[-./:]\w+)*")
_PART = re.compile(r"[^\W_]+")


def analyze(text: str, stopwords: Collection[str] = ENGLISH_STOPWORDS) -> list[str]:
    """Lower-cased words of ``text`` (NFKC), without stemming; ``stopwords=()`` keeps every word.

    A compound such as ``kestrel-7b-04`` or ``cfg/lidar_v3.yaml`` yields itself and then its parts (``kestrel``,
    ``7b``, ``04``), because the whole ranks the exact identifier above its siblings, while the parts still find it
    when the query writes it another way or gets one piece of it wrong.
    """
    terms: list[str] = []
    for match in _IDENTIFIER.finditer(unicodedata.normalize("NFKC", text).lower()):
        word = match.group()
        parts = _PART.findall(word)
        if parts and parts != [word]:
            terms.append(word)
        terms += [part for part in parts if part not in stopwords]
    return terms
