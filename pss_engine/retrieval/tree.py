"""A tree of summaries over clusters of passages, searched at all levels at once (in the manner of RAPTOR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.errors import ConfigError
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.encoder import Encoder
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.search import check_search
from pss_engine.retrieval.summary_leaf import Summarize, lead

_ROUNDS = 10


@dataclass(frozen=True)
class Node:
    """A summary, and the rows of the passages below it."""

    text: str
    rows: tuple[int, ...]


class Tree:
    """Collapsed-tree search (Sarthi et al., ICLR 2024): passages and summaries of all levels compete by cosine.

    Each level clusters the one below into groups of about ``fanout`` by spherical k-means, whose first centres are
    the points furthest apart, so that equal corpora give equal trees; a group is summarised and encoded again. A
    passage scores the highest of its own similarity s and of ``t - (1 - s) / 20`` for every summary above it, of
    similarity t: a summary that fits brings its passages in, in their own order.

    Args:
        summarize: texts to one text.
        fanout: 2 or more.
    """

    def __init__(self, corpus: Corpus, encoder: Encoder, summarize: Summarize = lead, fanout: int = 8) -> None:
        if fanout < 2:
            raise ConfigError(f"fanout is {fanout}; it must be 2 or more")
        self.corpus, self.encoder, self.summarize, self.fanout = corpus, encoder, summarize, fanout
        self._version = -1
        self._follow()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        check_search(queries, k)
        if not queries:
            return []
        self._follow()
        asked = F.normalize(self.encoder.queries(queries), dim=1)
        # Rounded, so that how many queries stand beside this one cannot part two equal passages.
        leaves, nodes = ((asked @ vectors.T).mul(1e5).round() / 1e5 for vectors in (self._leaves, self._vectors))
        return [self._rank(own, above, k) for own, above in zip(leaves, nodes, strict=True)]

    def _rank(self, own: Tensor, above: Tensor, k: int) -> list[Hit]:
        best = own.clone()
        for score, node in zip(above.tolist(), self.nodes, strict=True):
            places = [self._place[row] for row in node.rows]
            lifted = score - (1 - own[places]) / 20
            best[places] = torch.maximum(best[places], lifted)
        hits = [Hit(passage_id, score) for passage_id, score in zip(self._ids, best.tolist(), strict=True)]
        return sorted(hits, key=lambda hit: (-hit.score, hit.passage_id))[:k]

    def _follow(self) -> None:
        corpus = self.corpus
        if self._version == corpus.version:
            return
        rows = corpus.rows
        self._ids, self._place = corpus.ids(rows), {row: place for place, row in enumerate(rows)}
        texts = [corpus[row].rendered for row in rows]
        self._leaves = F.normalize(self.encoder.passages(texts), dim=1)
        self.nodes: list[Node] = []
        level, vectors = [Node(text, (row,)) for text, row in zip(texts, rows, strict=True)], self._leaves
        held = [self._leaves[:0]]
        while len(level) > self.fanout:
            groups = clusters(vectors, -(-len(level) // self.fanout))
            level = [
                Node(
                    self.summarize([level[i].text for i in group]),
                    tuple(row for i in group for row in level[i].rows),
                )
                for group in groups
            ]
            vectors = F.normalize(self.encoder.passages([node.text for node in level]), dim=1)
            self.nodes += level
            held.append(vectors)
        self._vectors = torch.cat(held)
        self._version = corpus.version


def clusters(vectors: Tensor, count: int) -> list[list[int]]:
    """Spherical k-means of unit vectors [n, H] into at most ``count`` groups; the same for the same input."""
    centres = [0]
    nearest = vectors @ vectors[0]
    for _ in range(1, min(count, len(vectors))):
        centres.append(int(nearest.argmin()))
        nearest = torch.maximum(nearest, vectors @ vectors[centres[-1]])
    means = vectors[centres]
    for _ in range(_ROUNDS):
        owners = (vectors @ means.T).argmax(1)
        sums = torch.zeros_like(means).index_add_(0, owners, vectors)
        kept = sums.norm(dim=1) > 0
        means = torch.where(kept[:, None], F.normalize(sums, dim=1), means)
    groups: dict[int, list[int]] = {}
    for index, owner in enumerate((vectors @ means.T).argmax(1).tolist()):
        groups.setdefault(owner, []).append(index)
    return [groups[owner] for owner in sorted(groups)]
