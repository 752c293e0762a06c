"""Tier 3, second role: what earlier queries concluded. This role alone is the persistent memory that arms differ in."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pss_engine.agents.memory.evidence import cosines
from pss_engine.agents.memory.key_value import KeyValueStore, StoreDown
from pss_engine.errors import ConfigError
from pss_engine.metrics import AgentCounters
from pss_engine.retrieval import Encoder
from pss_engine.retrieval.stores import VectorStore

NAMESPACE = "traces"


@dataclass(frozen=True)
class Trace:
    """A stored (q, k, v): the question, the step that wrote it, what it concluded.

    Attributes:
        query: id of the query that wrote it.
        score: cosine to the question that recalled it.
    """

    id: str
    query: str
    question: str
    key: str
    value: str
    score: float = 0.0


class TraceMemory:
    """Traces by the embedding of their question; texts lie in the key-value store, vectors in the vector store.

    A store that fails costs the recall, never the answer: it is counted, and the query goes on without.

    Args:
        namespace: of the texts; two runs on one store must not share one.
        ttl_s: seconds that a trace lives; None: until it is cleared.
    """

    def __init__(
        self,
        vectors: VectorStore,
        texts: KeyValueStore,
        encoder: Encoder,
        counters: AgentCounters,
        namespace: str = NAMESPACE,
        ttl_s: float | None = None,
    ) -> None:
        if vectors.dim != encoder.dim:
            raise ConfigError(f"the store holds vectors of {vectors.dim} features, the encoder gives {encoder.dim}")
        self._vectors, self._texts, self._encoder, self._counters = vectors, texts, encoder, counters
        self._namespace, self._ttl_s = namespace, ttl_s
        self._ids: dict[str, str] = {}  # of the traces written here, and the query of each

    def __len__(self) -> int:
        return len(self._ids)

    def search_outputs(self, question: str, threshold: float, k: int, query: str = "") -> list[Trace]:
        """Traces whose questions have a cosine of at least ``threshold``, best first; at most ``k``.

        Args:
            query: id of the query that asks; its own traces are no memory, it has them at hand.
        """
        self._counters.num_recall_searches += 1
        others = [trace_id for trace_id, owner in self._ids.items() if owner != query]
        if not others:
            return []
        try:
            hits = self._vectors.search(cosines(self._encoder, [question]), k, others)[0]
            found = [self._read(hit.passage_id, hit.score) for hit in hits if hit.score >= threshold]
        except Exception:  # vector stores pass on what their transports raise
            self._counters.num_trace_faults += 1
            return []
        recalled = [trace for trace in found if trace is not None]
        self._counters.num_recalled += len(recalled)
        return recalled

    def store_qkv(self, query: str, question: str, key: str, value: str, part: int = 0) -> bool:
        """Write a trace once; False where it is there already or a store failed. ``part``: of the query."""
        trace_id = f"{query}/{part}/{key}"
        body = {"query": query, "question": question, "key": key, "value": value}
        try:
            if not self._texts.put_once(self._namespace, trace_id, json.dumps(body).encode(), self._ttl_s):
                return False
            self._vectors.add([trace_id], cosines(self._encoder, [question]))
        except Exception:
            self._counters.num_trace_faults += 1
            return False
        self._ids[trace_id] = query
        self._counters.num_traces_written += 1
        return True

    def clear(self) -> int:
        """Remove all traces, no evidence; how many there were. Raises StoreDown: a reset that failed is no reset."""
        count = len(self._ids)
        try:
            self._vectors.remove(list(self._ids))
        except Exception as error:
            raise StoreDown(f"traces cannot be cleared: {error}") from None
        self._texts.clear(self._namespace)
        self._ids = {}
        return count

    def _read(self, trace_id: str, score: float) -> Trace | None:
        data = self._texts.get(self._namespace, trace_id)
        if data is None:
            self._counters.num_traces_lost += 1
            return None
        try:
            return Trace(trace_id, **json.loads(data), score=score)
        except (ValueError, TypeError):
            self._counters.num_traces_lost += 1
            return None
