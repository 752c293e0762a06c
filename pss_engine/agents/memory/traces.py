"""Tier 3, second role: what earlier queries concluded. This role alone is the persistent memory that arms differ in."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pss_engine.agents.memory.evidence import cosines
from pss_engine.agents.memory.key_value import KeyValueStore, StoreDown
from pss_engine.errors import ConfigError
from pss_engine.metrics import AgentCounters
from pss_engine.ops.search import MAX_DEPTH
from pss_engine.retrieval import Encoder
from pss_engine.retrieval.stores import VectorStore

NAMESPACE = "traces"
_SLACK = 16


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

    Both may outlive the process: a memory that is opened on them again recalls what was written before. A store that
    fails costs the recall, never the answer: it is counted, and the query goes on without.

    Args:
        vectors: a store of its own; evidence does not lie in it.
        namespace: of texts and ids; memories that share their stores must not share it.
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
        self._written: dict[str, int] = {}  # traces by query, of this process

    def search_outputs(self, question: str, threshold: float, k: int, query: str = "") -> list[Trace]:
        """Traces whose questions have a cosine of at least ``threshold``, best first; at most ``k``. Cosines that agree
        in six digits, which is what stores differ by, are equal and in order of id.

        Args:
            query: id of the query that asks; its own traces are no memory, it has them at hand.
        """
        self._counters.num_recall_searches += 1
        depth = min(k + self._written.get(query, 0) + _SLACK, MAX_DEPTH)
        try:
            if not len(self._vectors):
                return []
            hits = self._vectors.search(cosines(self._encoder, [question]), depth, None)[0]
            near = [hit for hit in hits if hit.score >= threshold and hit.passage_id.startswith(f"{self._namespace}/")]
            near.sort(key=lambda hit: (-round(hit.score, 6), hit.passage_id))
            found = [self._read(hit.passage_id, hit.score) for hit in near]
        except Exception:  # vector stores pass on what their transports raise
            self._counters.num_trace_faults += 1
            return []
        recalled = [trace for trace in found if trace is not None and trace.query != query][:k]
        self._counters.num_recalled += len(recalled)
        return recalled

    def store_qkv(self, query: str, question: str, key: str, value: str, part: int = 0) -> bool:
        """Write a trace once; False where it is there already or a store failed. ``part``: of the query."""
        trace_id = f"{self._namespace}/{query}/{part}/{key}"
        body = {"query": query, "question": question, "key": key, "value": value}
        try:
            if not self._texts.put_once(self._namespace, trace_id, json.dumps(body).encode(), self._ttl_s):
                return False
            self._vectors.add([trace_id], cosines(self._encoder, [question]))
        except Exception:
            self._counters.num_trace_faults += 1
            return False
        self._written[query] = self._written.get(query, 0) + 1
        self._counters.num_traces_written += 1
        return True

    def clear(self) -> int:
        """Remove all traces, no evidence; how many there were. Raises StoreDown: a reset that failed is no reset."""
        ids = self._texts.keys(self._namespace)
        for trace_id in ids:
            try:
                self._vectors.remove([trace_id])
            except ConfigError:  # its vector was never written
                continue
            except Exception as error:
                raise StoreDown(f"traces cannot be cleared: {error}") from None
        self._texts.clear(self._namespace)
        self._written = {}
        return len(ids)

    def _read(self, trace_id: str, score: float) -> Trace | None:
        data = self._texts.get(self._namespace, trace_id)
        try:
            return Trace(trace_id, **json.loads(data or b""), score=score)
        except (ValueError, TypeError):
            self._counters.num_traces_lost += 1
            return None
