"""Passages and the entities they name, as a graph: what is related is found through what both mention."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pss_engine.errors import ConfigError
from pss_engine.retrieval.analyzer import ENGLISH_STOPWORDS
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.postings import Counts, count
from pss_engine.retrieval.search import Searcher, check_search

Extract = Callable[[str], list[str]]
"""Text to the names of entities, each as often as it occurs: a model's, or :func:`entities`."""

# Capitalised words in a row, identifiers with a digit or a joint, and words in capitals.
_NAME = re.compile(
    r"[^\W\d_][\w'-]*(?:[-./:_]\w+)+|\w*\d\w*(?:[-./:_]\w+)*|[A-Z][\w'-]*(?: (?:of |the )*[A-Z][\w'-]*)*"
)
_ROUNDS = 20
_SEEDS = 8


def entities(text: str) -> list[str]:
    """Names in a text by their form, lower-cased; single function words that begin a sentence are left out."""
    found = (match.group().lower() for match in _NAME.finditer(text))
    return [name for name in found if name not in ENGLISH_STOPWORDS and len(name) > 1]


class Graph:
    """Personalised PageRank over passages and entities.

    A passage and an entity are joined by how often the one names the other; two entities are related through the
    passages that name both. A question starts at the entities it names and at the first passages that ``seeds``
    finds; rank flows from there, ``damping`` of it a step, spread by the weight of the joints and an entity's rarity.

    Args:
        seeds: any search over passages with the ids of ``corpus``.
        extract: text to entities, for passages and questions alike.
    """

    def __init__(self, corpus: Corpus, seeds: Searcher, extract: Extract = entities, damping: float = 0.5) -> None:
        if not 0 < damping < 1:
            raise ConfigError(f"damping is {damping}; it must be between 0 and 1")
        self.corpus, self.seeds, self.extract, self.damping = corpus, seeds, extract, damping
        self._entities: dict[str, int] = {}
        self._version = -1
        self._follow()

    def related(self, name: str, k: int) -> list[tuple[str, float]]:
        """Entities that are named together with this one, by number of passages, then by name."""
        self._follow()
        entity = self._entities.get(name.lower())
        if entity is None:
            return []
        rows = set(self._rows[self._counts.indptr[entity] : self._counts.indptr[entity + 1]].tolist())
        together = np.bincount(self._owners[np.isin(self._rows, list(rows))], minlength=len(self._entities))
        names = sorted(self._entities, key=lambda other: (-together[self._entities[other]], other))
        return [
            (o, float(together[self._entities[o]])) for o in names if o != name.lower() and together[self._entities[o]]
        ][:k]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Passages that no path joins to the question are not returned."""
        check_search(queries, k)
        if not queries:
            return []
        self._follow()
        found = self.seeds.search(queries, _SEEDS)
        return [self._rank(query, hits, k) for query, hits in zip(queries, found, strict=True)]

    def _rank(self, query: str, seeds: Sequence[Hit], k: int) -> list[Hit]:
        passages, names = np.zeros(self.corpus.num_rows), np.zeros(len(self._entities))
        for rank, hit in enumerate(seeds, 1):
            passages[self.corpus.row_of(hit.passage_id)] += 1 / rank
        for name in self.extract(query):
            if name in self._entities:
                names[self._entities[name]] += 1
        start = _unit(passages), _unit(names)
        flow_p, flow_n = start
        for _ in range(_ROUNDS):
            to_names = np.bincount(self._owners, flow_p[self._rows] * self._from_passage, len(names))
            to_passages = np.bincount(self._rows, flow_n[self._owners] * self._from_entity, len(passages))
            flow_p = (1 - self.damping) * start[0] + self.damping * to_passages
            flow_n = (1 - self.damping) * start[1] + self.damping * to_names
        rows = [row for row in np.flatnonzero(flow_p > 0).tolist() if self._present[row]]
        hits = [
            Hit(passage_id, float(flow_p[row])) for row, passage_id in zip(rows, self.corpus.ids(rows), strict=True)
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.passage_id))[:k]

    def _follow(self) -> None:
        corpus = self.corpus
        if self._version == corpus.version:
            return
        self._present = corpus.present
        documents = [self.extract(corpus[row].rendered) if held else [] for row, held in enumerate(self._present)]
        self._entities = {}
        self._counts: Counts = count(documents, 0, self._entities)[0]
        self._rows = self._counts.rows
        held = np.diff(self._counts.indptr)
        self._owners: npt.NDArray[np.int64] = np.repeat(np.arange(len(held)), held)
        rarity = np.log1p(len(corpus) / np.maximum(held, 1))
        weight = self._counts.counts * rarity[self._owners]
        self._from_passage = weight / np.bincount(self._rows, weight, corpus.num_rows)[self._rows]
        self._from_entity = weight / np.bincount(self._owners, weight, len(held))[self._owners]
        self._version = corpus.version


def _unit(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = values.sum()
    return values / total if total > 0 else values
