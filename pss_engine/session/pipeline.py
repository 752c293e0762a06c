"""``SessionRAG``: state on, clue, state off, retrieve, answer (PSS, section 2.4)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pss_engine.engine import Engine, Request, RequestOutput, SamplingParams, run_stages
from pss_engine.errors import ConfigError, PSSError
from pss_engine.kv import QueryUsage
from pss_engine.metrics import RetrievalCounters
from pss_engine.retrieval import BM25, Corpus, Found, Hybrid
from pss_engine.session.answer import Answer, Clue, Evidence
from pss_engine.session.prompts import AnswerPrompt
from pss_engine.state import SessionState, StateHandle, StateStore
from pss_engine.writer import INSTRUCTION, History, SessionTargets, Writer, clue_messages, readout_messages
from pss_engine.writer.writer import Progress

MODES = ("clue", "raw", "rrf", "readout")


class SessionRAG:
    """The lifecycle of session states over one engine, one corpus and one store.

    Modes of a query: ``clue`` searches with the state's clue, ``raw`` with the query, ``rrf`` fuses both rankings
    (constant 60), ``readout`` searches with the query and the state's fixed readout and generates no clue.

    Without a corpus (None), states are written and clues are told, but nothing can be retrieved or answered.

    Args:
        retriever: what searches the corpus; None: BM25 over it. Its corpus gets the token ids of the engine's model,
            and evidence enters the answer prompts as token ids.
    """

    def __init__(
        self,
        engine: Engine,
        corpus: Corpus | None,
        store: StateStore,
        *,
        top_k: int = 4,
        max_clue_tokens: int = 64,
        max_answer_tokens: int = 64,
        retriever: Hybrid | None = None,
    ) -> None:
        if top_k < 1:
            raise ConfigError(f"top_k is {top_k}; it must be at least 1")
        self.engine, self.corpus, self.store = engine, corpus, store
        self.top_k = top_k
        if retriever is not None and retriever.corpus is not corpus:
            raise ConfigError("the retriever searches another corpus than the one given to SessionRAG")
        self._retriever = retriever or (None if corpus is None else Hybrid(BM25(corpus)))
        self.retrieval = RetrievalCounters()
        self._clue_sampling = SamplingParams(max_new_tokens=max_clue_tokens)
        self._answer_sampling = SamplingParams(max_new_tokens=max_answer_tokens)

    def write(
        self,
        session_id: str,
        history: History,
        targets: SessionTargets | None = None,
        *,
        writer: Writer | None = None,
        progress: Progress | None = None,
    ) -> SessionState:
        """Compile a history, record the state's fixed readout, and store it; the session can be asked at once."""
        writer = writer or Writer(self.engine.model)
        state = record_readout(self.engine, writer.write(session_id, history, targets, progress), self._clue_sampling)
        self.store.put(state)
        self.engine.add_stored(self.store, session_id)
        return state

    def clues(self, asks: Sequence[tuple[str, str]]) -> list[Clue]:
        """One clue per (session id, query), decoded in one batch.

        Raises:
            SessionNotFound: a session without a state; nothing is generated.
        """
        requests = self._clue_requests(asks)
        return [_clue(output) for output in _ended(self.engine.generate(requests))]

    def retrieve(self, searches: Sequence[Sequence[str]]) -> list[Evidence]:
        """Evidence for each group of search texts; several texts of one group are fused by reciprocal rank.

        Raises:
            ConfigError: there is no corpus.
        """
        return self._search(searches)[1]

    def ask(self, session_id: str, query: str, mode: str = "clue") -> Answer:
        """Answer one follow-up. See :meth:`ask_many`."""
        return self.ask_many([(session_id, query)], mode)[0]

    def ask_many(self, asks: Sequence[tuple[str, str]], mode: str = "clue") -> list[Answer]:
        """Answer follow-ups of many sessions: the clues in one batch, each search as soon as its clue is told.

        Raises:
            ConfigError: an unknown mode.
            SessionNotFound: a session without a state; it is never answered by the base model instead.
            RequestRejected: a query that does not fit the context.
        """
        if mode not in MODES:
            raise ConfigError(f"mode {mode!r} is unknown; choices: {', '.join(MODES)}")
        if mode in ("clue", "rrf"):
            return self._ask_with_clues(asks, mode)
        clues = [_fixed(self._state(session_id), mode) for session_id, _ in asks]
        evidence, requests = self._answer_requests(asks, clues, mode)
        outputs = _ended(self.engine.generate(requests))
        return [_answer(mode, *parts) for parts in zip(asks, clues, evidence, outputs, strict=True)]

    def _ask_with_clues(self, asks: Sequence[tuple[str, str]], mode: str) -> list[Answer]:
        """The sessions whose clues are told search and answer while the clues of the others are decoded."""
        self._require_corpus()
        evidence: dict[int, Evidence] = {}

        def between(places: list[int], outputs: list[RequestOutput]) -> list[Request]:
            chosen = [asks[place] for place in places]
            found, requests = self._answer_requests(chosen, [_clue(output) for output in outputs], mode)
            evidence.update(zip(places, found, strict=True))
            return requests

        ran = run_stages(self.engine, self._clue_requests(asks), between)
        self.retrieval.num_overlapped_steps += ran.num_overlapped_steps
        return [
            _answer(mode, ask, _clue(first), evidence[place], second)
            for place, (ask, first, second) in enumerate(zip(asks, ran.first, ran.second, strict=True))
        ]

    def _clue_requests(self, asks: Sequence[tuple[str, str]]) -> list[Request]:
        states = [self._state(session_id) for session_id, _ in asks]
        return [
            Request(clue_messages(_instruction(state), query), self._clue_sampling, session=session_id, agent="clue")
            for state, (session_id, query) in zip(states, asks, strict=True)
        ]

    def _answer_requests(
        self, asks: Sequence[tuple[str, str]], clues: Sequence[Clue], mode: str
    ) -> tuple[list[Evidence], list[Request]]:
        """From clues to answer prompts: one search, and the token ids of what it found."""
        if not asks:
            return [], []
        retriever = self._require_corpus()
        retriever.corpus.tokenize(self.engine.model.tokenizer.hf)
        found, evidence = self._search(
            [_searches(mode, query, clue.text) for (_, query), clue in zip(asks, clues, strict=True)]
        )
        prompt = AnswerPrompt(self.engine.model.tokenizer)
        after = [prompt.after(query, bool(own.hits)) for (_, query), own in zip(asks, evidence, strict=True)]
        ids = retriever.prompts(found, [prompt.before] * len(asks), after, prompt.separator)
        around = sum(len(prompt.before) + len(last) for last in after)
        self.retrieval.num_evidence_tokens += sum(map(len, ids)) - around
        return evidence, [Request(row.tolist(), self._answer_sampling, agent="answer") for row in ids]

    def _search(self, searches: Sequence[Sequence[str]]) -> tuple[Found, list[Evidence]]:
        retriever, start = self._require_corpus(), time.monotonic()
        found = retriever.retrieve(searches, self.top_k)
        corpus = retriever.corpus
        passages = [tuple(corpus[row] for row in rows if row >= 0) for rows in found.rows.tolist()]
        seconds = (time.monotonic() - start) / max(1, len(searches))
        self.retrieval.num_searches += 1
        self.retrieval.num_questions += len(searches)
        self.retrieval.num_unknown_questions += sum(not hits for hits in found.hits)
        return found, [Evidence(tuple(h), p, seconds) for h, p in zip(found.hits, passages, strict=True)]

    def _require_corpus(self) -> Hybrid:
        if self._retriever is None:
            raise ConfigError("there is no corpus to retrieve from; give one to SessionRAG")
        return self._retriever

    def _state(self, session_id: str) -> StateHandle:
        """The session's newest state, registered with the engine."""
        states = self.engine.states
        known = states.get(session_id) if session_id in states.sessions else None
        if session_id in self.store and (known is None or self.store.head(session_id) != known.digest):
            self.engine.add_stored(self.store, session_id)
        return states.get(session_id)


def record_readout(engine: Engine, state: SessionState, sampling: SamplingParams) -> SessionState:
    """The state with its fixed readout: what it emits for the training instruction, before any query is known."""
    engine.add_state(state)
    messages = readout_messages(_instruction(state))
    output = _ended(engine.generate([Request(messages, sampling, session=state.session_id, agent="readout")]))[0]
    engine.remove_state(state.session_id)
    meta = replace(state.meta, readout=output.text.strip(), readout_token_ids=tuple(output.token_ids))
    return replace(state, meta=meta)


def _instruction(state: SessionState | StateHandle) -> str:
    """The instruction that the state was trained on; an adapter that was not written here gets the default one."""
    return str(state.meta.writer.get("instruction", INSTRUCTION))


def _fixed(state: StateHandle, mode: str) -> Clue:
    if mode == "readout" and not state.meta.readout:
        raise ConfigError(f"state of session {state.session_id!r} has no stored readout; choices: clue, raw, rrf")
    return Clue(state.meta.readout if mode == "readout" else "", state.digest, QueryUsage(), 0.0)


def _clue(output: RequestOutput) -> Clue:
    return Clue(output.text.strip(), output.state_digest, QueryUsage([output.usage]), output.timings.total_s)


def _answer(mode: str, ask: tuple[str, str], clue: Clue, found: Evidence, output: RequestOutput) -> Answer:
    session_id, query = ask
    return Answer(
        session_id,
        query,
        mode,
        clue,
        found,
        output.text.strip(),
        output.finish_reason,
        QueryUsage([*clue.usage.calls, output.usage]),
        output.timings.total_s,
    )


def _searches(mode: str, query: str, clue: str) -> list[str]:
    return {"clue": [clue], "raw": [query], "rrf": [query, clue], "readout": [f"{query} {clue}"]}[mode]


def _ended(outputs: list[RequestOutput]) -> list[RequestOutput]:
    for output in outputs:
        if output.finish_reason == "error":
            raise PSSError(f"request {output.request_id} failed: {output.error}")
    return outputs
