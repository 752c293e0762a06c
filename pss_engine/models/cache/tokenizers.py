"""Tokenizers of cached models: saved by transformers, read by the lightest reader that reads them alike."""

from __future__ import annotations

import logging
from pathlib import Path

from pss_engine.errors import ConfigError, PSSError
from pss_engine.models.tokenizer import Message, Tokenizer

PROBE = "Rerun  the previous configuration,\n\tplease: ünïcode 你好 12345 <|im_end|></s>"
CHATS = (("user",), ("system", "user"), ("user", "assistant", "user"), ("system", "user", "assistant"))

_log = logging.getLogger(__name__)


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> str:
    """Save a tokenizer of transformers; returns the name of the first reader that reads the same from there.

    Raises:
        PSSError: none does.
    """
    from transformers import PreTrainedTokenizerBase

    assert isinstance(tokenizer.hf, PreTrainedTokenizerBase)
    tokenizer.hf.save_pretrained(folder)
    wanted = _facts(tokenizer)
    for name, read in READERS.items():
        try:
            if _facts(read(folder)) == wanted:
                return name
        except Exception as error:  # a reader of what it was not made for raises what it likes
            _log.debug("%s does not read the tokenizer in %s: %r", name, folder, error)
    raise PSSError("its tokenizer does not survive being saved")


def read_tokenizer(folder: Path, reader: str) -> Tokenizer:
    """What :func:`write_tokenizer` saved, by the reader that it named. Raises KeyError for an unknown one."""
    return READERS[reader](folder)


def _read_by_tokenizers(folder: Path) -> Tokenizer:
    from pss_engine.models.saved_tokenizer import SavedTokenizer

    return Tokenizer(SavedTokenizer(folder))


def _read_by_transformers(folder: Path) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    return Tokenizer(PreTrainedTokenizerFast.from_pretrained(folder))


READERS = {"tokenizers": _read_by_tokenizers, "transformers": _read_by_transformers}


def _facts(tokenizer: Tokenizer) -> list[object]:
    """What is asked of a tokenizer, by examples."""
    return [
        tokenizer.fingerprint,
        tokenizer.eos_token_id,
        tokenizer.special_tokens,
        tokenizer.encode(PROBE),
        tokenizer.prompt(PROBE),
        tokenizer.hf.encode(PROBE, add_special_tokens=False),
        tokenizer.decode(tokenizer.prompt(PROBE)),
        tokenizer.decode(tokenizer.prompt(PROBE), skip_special_tokens=False),
        *(_chat(tokenizer, [{"role": role, "content": "Rerun it, please."} for role in roles]) for roles in CHATS),
    ]


def _chat(tokenizer: Tokenizer, messages: list[Message]) -> list[int] | str:
    """Its tokens, or that the template refuses it."""
    try:
        return tokenizer.chat(messages)
    except ConfigError:
        return "refused"
