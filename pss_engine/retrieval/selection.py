"""Which records of a session a question is about."""

from __future__ import annotations

from collections.abc import Sequence

from pss_engine.errors import ConfigError
from pss_engine.retrieval.bm25 import BM25
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.dense import Dense
from pss_engine.retrieval.encoder import Encoder
from pss_engine.retrieval.passage import Passage

SELECTORS = ("bm25", "dense")


def select_records(
    query: str, records: Sequence[str], count: int = 1, method: str = "bm25", encoder: Encoder | None = None
) -> list[int]:
    """Indexes of the ``count`` records that are closest to the query, best first (the paper's top-1 and top-2).

    ``bm25`` gives fewer, or none, where records share no word with the query.

    Raises:
        ConfigError: no records, ``count`` below 1, an unknown method, or ``dense`` without an encoder.
    """
    if not records:
        raise ConfigError("there are no records to select from")
    if method not in SELECTORS:
        raise ConfigError(f"selector {method!r} is unknown; choices: {', '.join(SELECTORS)}")
    width = len(str(len(records)))  # equal scores in the order of the records, which ids of one length keep
    bank = Corpus(Passage(f"{i:0{width}}", "", record) for i, record in enumerate(records))
    if method == "bm25":
        return [int(hit.passage_id) for hit in BM25(bank).search([query], count)[0]]
    if encoder is None:
        raise ConfigError("selector 'dense' needs an encoder")
    return [int(hit.passage_id) for hit in Dense(bank, encoder, "float32").search([query], count)[0]]
