"""``SessionRAG``: state on, clue, state off, retrieve, answer (PSS, section 2.4)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.errors import ConfigError
from pss_engine.kv import QueryUsage
from pss_engine.retrieval import BM25, Corpus, Hit, rrf
from pss_engine.session.answer import Answer, Clue, Evidence
from pss_engine.session.prompts import answer_messages
from pss_engine.session.readout import ReadoutGate, ended, instruction_of
from pss_engine.session.writing import OnStep, StateWriting, Stored
from pss_engine.state import SessionState, StateHandle, StateStore
from pss_engine.writer import History, SessionTargets, WriteJob, Writer, clue_messages
from pss_engine.writer.writer import Progress

MODES = ("clue", "raw", "rrf", "readout")
RRF_DEPTH = 50


class SessionRAG:
    """The lifecycle of session states over one engine, one corpus and one store.

    Modes of a query: ``clue`` searches with the state's clue, ``raw`` with the query, ``rrf`` fuses both rankings
    (constant 60), ``readout`` searches with the query and the state's fixed readout and generates no clue.

    Without a corpus (None), states are written and clues are told, but nothing can be retrieved or answered.
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
    ) -> None:
        if top_k < 1:
            raise ConfigError(f"top_k is {top_k}; it must be at least 1")
        self.engine, self.corpus, self.store = engine, corpus, store
        self.top_k = top_k
        self._retriever = None if corpus is None else BM25(corpus)
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
        gate: ReadoutGate | None = None,
        ask_base: bool = False,
    ) -> SessionState:
        """Compile a history, record the state's fixed readout, and store it; the session can be asked at once.

        A session whose current state was written from the same history, targets and settings is not written again.

        Args:
            gate: judges the readout, see :class:`ReadoutGate`; None: it is recorded as it is.
            ask_base: let the base model vote on targets that are extracted.
        """
        writing = self._writing(writer, gate, ask_base)
        return self._ready(writing.write([WriteJob(session_id, history, targets)], _each(progress))[0])

    def go_on(
        self,
        session_id: str,
        turns: History,
        targets: SessionTargets | None = None,
        *,
        writer: Writer | None = None,
        progress: Progress | None = None,
        gate: ReadoutGate | None = None,
    ) -> SessionState:
        """Continue a session's state with new turns; see :meth:`StateWriting.go_on`."""
        return self._ready(self._writing(writer, gate).go_on(session_id, turns, targets, _each(progress)))

    def _writing(self, writer: Writer | None, gate: ReadoutGate | None, ask_base: bool = False) -> StateWriting:
        writer = writer or Writer(self.engine.model)
        return StateWriting(self.engine, self.store, writer, gate, self._clue_sampling.max_new_tokens, ask_base)

    def _ready(self, stored: Stored) -> SessionState:
        if stored.error is not None:
            raise stored.error
        self.engine.add_stored(self.store, stored.session_id)
        return self.store.get(stored.session_id)

    def clues(self, asks: Sequence[tuple[str, str]]) -> list[Clue]:
        """One clue per (session id, query), decoded in one batch.

        Raises:
            SessionNotFound: a session without a state; nothing is generated.
        """
        states = [self._state(session_id) for session_id, _ in asks]
        requests = [
            Request(
                clue_messages(instruction_of(state), query),
                self._clue_sampling,
                session=session_id,
                agent="clue",
                scope=self.store.tenant,
            )
            for state, (session_id, query) in zip(states, asks, strict=True)
        ]
        return [
            Clue(output.text.strip(), output.state_digest, QueryUsage([output.usage]), output.timings.total_s)
            for output in ended(self.engine.generate(requests))
        ]

    def retrieve(self, searches: Sequence[Sequence[str]]) -> list[Evidence]:
        """Evidence for each group of search texts; several texts of one group are fused by reciprocal rank.

        Raises:
            ConfigError: there is no corpus.
        """
        if self.corpus is None or self._retriever is None:
            raise ConfigError("there is no corpus to retrieve from; give one to SessionRAG")
        corpus, start = self.corpus, time.monotonic()
        flat = [text for group in searches for text in group]
        depth = self.top_k if len(flat) == len(searches) else max(RRF_DEPTH, self.top_k)
        found = iter(self._retriever.search(flat, depth))
        fused = [self._fuse([next(found) for _ in group]) for group in searches]
        seconds = (time.monotonic() - start) / max(1, len(searches))
        return [Evidence(tuple(hits), tuple(corpus.by_id(h.passage_id) for h in hits), seconds) for hits in fused]

    def ask(self, session_id: str, query: str, mode: str = "clue") -> Answer:
        """Answer one follow-up. See :meth:`ask_many`."""
        return self.ask_many([(session_id, query)], mode)[0]

    def ask_many(self, asks: Sequence[tuple[str, str]], mode: str = "clue") -> list[Answer]:
        """Answer follow-ups of many sessions: one batch of clues, one search, one batch of answers.

        Raises:
            ConfigError: an unknown mode.
            SessionNotFound: a session without a state; it is never answered by the base model instead.
            RequestRejected: a query that does not fit the context.
        """
        if mode not in MODES:
            raise ConfigError(f"mode {mode!r} is unknown; choices: {', '.join(MODES)}")
        states = [self._state(session_id) for session_id, _ in asks]
        clues = self.clues(asks) if mode in ("clue", "rrf") else [_fixed(state, mode) for state in states]
        searches = [_searches(mode, query, clue.text) for (_, query), clue in zip(asks, clues, strict=True)]
        evidence = self.retrieve(searches)
        requests = [
            Request(
                answer_messages(query, found.passages), self._answer_sampling, agent="answer", scope=self.store.tenant
            )
            for (_, query), found in zip(asks, evidence, strict=True)
        ]
        outputs = ended(self.engine.generate(requests))
        return [
            Answer(
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
            for (session_id, query), clue, found, output in zip(asks, clues, evidence, outputs, strict=True)
        ]

    def _fuse(self, rankings: list[list[Hit]]) -> list[Hit]:
        return rankings[0][: self.top_k] if len(rankings) == 1 else rrf(rankings, k=self.top_k)

    def _state(self, session_id: str) -> StateHandle:
        """The session's newest state, registered with the engine."""
        states = self.engine.states
        known = states.get(session_id) if session_id in states.sessions else None
        if session_id in self.store and (known is None or self.store.head(session_id) != known.digest):
            self.engine.add_stored(self.store, session_id)
        return states.get(session_id)


def _each(progress: Progress | None) -> OnStep | None:
    if progress is None:
        return None
    return lambda _job, phase, done, total, loss: progress(phase, done, total, loss)


def _fixed(state: StateHandle, mode: str) -> Clue:
    if mode == "readout" and not state.meta.readout:
        raise ConfigError(f"state of session {state.session_id!r} has no stored readout; choices: clue, raw, rrf")
    return Clue(state.meta.readout if mode == "readout" else "", state.digest, QueryUsage(), 0.0)


def _searches(mode: str, query: str, clue: str) -> list[str]:
    return {"clue": [clue], "raw": [query], "rrf": [query, clue], "readout": [f"{query} {clue}"]}[mode]
