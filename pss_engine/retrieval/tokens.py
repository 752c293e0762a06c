"""Passages as token ids of the model that will read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pss_engine.retrieval.passage import Passage


def fingerprint_of(tokenizer: Any | None) -> str:
    """Which tokenizer made token ids: SHA-256 over its vocabulary; empty for None."""
    if tokenizer is None:
        return ""
    from pss_engine.models.tokenizer import Tokenizer

    return Tokenizer(tokenizer).fingerprint


def token_ids(passages: Sequence[Passage], tokenizer: Any) -> list[npt.NDArray[np.int32]]:
    """Title and text of each passage, without any special token, whatever the text looks like."""
    if not passages:
        return []
    encoded = tokenizer(
        [passage.rendered for passage in passages],
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        verbose=False,
    )
    return [np.array(ids, np.int32) for ids in encoded["input_ids"]]
