"""Text to search terms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Hashable
from typing import Any

from pss_engine.errors import BackendUnavailable, ConfigError

Analyzer = Callable[[str], list[Any]]
"""Text to terms, for passages and queries alike; a term is a string or a token id."""

_FUNCTION_WORDS = (
    "a an and are as at be but by for from had has have he her his i if in into is it its my no not of on or our she so"
    " than that the their them then there these they this to was we were what when which who will with you your"
)
ENGLISH_STOPWORDS = frozenset(_FUNCTION_WORDS.split())
ANALYZERS = ("word", "stemmed", "tokens")

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


def analyzer(name: str, tokenizer: Any | None = None) -> Analyzer:
    """An analyzer by name.

    ``word`` is :func:`analyze`; ``stemmed`` the same with Snowball's English stems (extra ``retrieval``); ``tokens``
    the token ids of the answering model, for which ``tokenizer`` (Hugging Face) is needed.

    Raises:
        ConfigError: an unknown name, or ``tokens`` without a tokenizer.
        BackendUnavailable: ``stemmed`` without PyStemmer.
    """
    if name == "word":
        return analyze
    if name == "stemmed":
        return _stemmed()
    if name == "tokens":
        if tokenizer is None:
            raise ConfigError("analyzer 'tokens' needs the model's tokenizer")
        return _token_terms(tokenizer)
    raise ConfigError(f"analyzer {name!r} is unknown; choices: {', '.join(ANALYZERS)}")


def _stemmed() -> Analyzer:
    try:
        import Stemmer
    except ImportError:
        raise BackendUnavailable(
            "analyzer 'stemmed' needs PyStemmer: pip install 'pss-engine[retrieval]'; choices without: word, tokens"
        ) from None
    stem = Stemmer.Stemmer("english").stemWords

    def stemmed(text: str) -> list[str]:
        terms: list[str] = stem(analyze(text))
        return terms

    return stemmed


def _token_terms(tokenizer: Any) -> Analyzer:
    def tokens(text: str) -> list[Hashable]:
        # As inside a text: a word at the beginning of a query is the word that passages hold behind a space.
        ids: list[Hashable] = tokenizer.encode(f" {text.strip()}", add_special_tokens=False, split_special_tokens=True)
        return ids

    return tokens
