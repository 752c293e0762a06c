"""The engine: requests in, outputs out, one batch a step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable

from pss_engine.config import EngineConfig
from pss_engine.engine.admission import Admission
from pss_engine.engine.detokenizer import Detokenizer
from pss_engine.engine.model_runner import ModelRunner
from pss_engine.engine.request import Request, RequestOutput, Timings
from pss_engine.engine.sampler import TokenSampler, sample_rows
from pss_engine.engine.scheduler import Chunk, Scheduler
from pss_engine.engine.sequence import Sequence
from pss_engine.errors import RequestRejected, SessionNotFound
from pss_engine.kv import SESSION, SHARED, KVCache, KVGeometry, KVMemory
from pss_engine.metrics import EngineCounters
from pss_engine.models import LoadedModel
from pss_engine.models.loader import DTYPES
from pss_engine.state import SessionState, StateHandle, StateSlots


class Engine:
    """Decodes many requests in one batch, each with its own session state or with the base model.

    Not thread-safe: call it from one thread.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig | None = None) -> None:
        self.model, self.config = model, config or EngineConfig()
        self.counters = EngineCounters()
        geometry = _geometry(model, self.config)
        num_blocks = Admission.num_blocks(geometry, self.config)
        self.memory = KVMemory(geometry, num_blocks)
        self.slots = _slots(model, self.config)
        self._admission = Admission(model, self.config, self.memory.max_tokens)
        self._runner = ModelRunner(
            model, KVCache(geometry, num_blocks, model.dtype, model.device), self.slots, self.counters
        )
        self._scheduler = Scheduler(self.config, self._take_slot, self._give_slot)
        self._states: dict[str, SessionState] = {}
        self._live: dict[str, Sequence] = {}
        self._undelivered: list[RequestOutput] = []
        self._ids = itertools.count()

    # states

    def add_state(self, state: SessionState) -> None:
        """Register a state under its session id; a later version replaces it for requests that come after.

        Raises:
            StateFormatError: made for another model or tokenizer, or of a rank, layer or shape that does not fit.
        """
        state.check(
            shape=self.slots.shape,
            max_rank=self.config.max_rank,
            model_fingerprint=self.model.fingerprint,
            tokenizer_fingerprint=self.model.tokenizer.fingerprint,
        )
        self._states[state.session_id] = state

    def remove_state(self, session: str) -> None:
        """Forget a session's state; requests already in the engine keep theirs."""
        self.state(session)
        del self._states[session]

    def state(self, session: str) -> SessionState:
        """The registered state of a session. Raises SessionNotFound."""
        if session not in self._states:
            known = ", ".join(self.sessions[:5]) or "none"
            raise SessionNotFound(f"session {session!r} has no state in this engine; known: {known}")
        return self._states[session]

    @property
    def sessions(self) -> list[str]:
        return sorted(self._states)

    # requests

    @property
    def num_unfinished(self) -> int:
        return len(self._live)

    def add(self, request: Request) -> str:
        """Queue a request; returns its id.

        Raises:
            RequestRejected: empty or too long, an id in use, or a full queue.
            SessionNotFound: no state is registered for its session.
        """
        state = self.state(request.session) if request.session is not None else None
        if len(self._scheduler.waiting) >= self.config.max_queued:
            raise RequestRejected(f"queue is full: {self.config.max_queued} requests wait (max_queued)")
        request_id = request.request_id or f"call-{next(self._ids)}"
        if request_id in self._live:
            raise RequestRejected(f"request id {request_id!r} is in use by a live request")
        token_ids = self._admission.prompt_tokens(request)
        state_bytes = state.num_bytes if state else 0
        sequence = Sequence(
            request,
            request_id,
            token_ids,
            self.memory.open(request_id, len(token_ids), request.agent, state_bytes),
            TokenSampler(request.sampling),
            Detokenizer(self.model.tokenizer, request.sampling.stop),
            state,
        )
        self._live[request_id] = sequence
        self._scheduler.add(sequence)
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now, with the text so far; None where it is not live (any more)."""
        sequence = self._live.get(request_id)
        if sequence is None:
            return None
        self.counters.num_aborted += 1
        return self._finish(sequence, "abort")

    def step(self) -> list[RequestOutput]:
        """Run one batch; returns the requests that ended in it."""
        undelivered, self._undelivered = self._undelivered, []
        return undelivered + self._step()

    def generate(
        self, requests: Iterable[Request], on_output: Callable[[RequestOutput], None] | None = None
    ) -> list[RequestOutput]:
        """Run requests to their end, all in one batch as far as memory allows; outputs in the order of the requests.

        A request that is refused raises before any of them runs. Outputs of requests added before are kept for the
        next :meth:`step`.
        """
        done: dict[str, RequestOutput | None] = {}
        try:
            for request in requests:
                done[self.add(request)] = None
        except Exception:
            for request_id in done:
                self.abort(request_id)
            raise
        others: list[RequestOutput] = []
        while None in done.values():
            for output in self.step():
                if output.request_id not in done:
                    others.append(output)
                    continue
                done[output.request_id] = output
                if on_output:
                    on_output(output)
            if not self._scheduler.running:
                self.slots.wait(timeout=1.0)
        self._undelivered += others
        return [output for output in done.values() if output is not None]

    def check(self) -> None:
        """Raise unless blocks, ledger and slots balance."""
        self.memory.check(self._live)
        self.slots.check()

    # inside a step

    def _step(self) -> list[RequestOutput]:
        chunks = self._scheduler.schedule()
        if not chunks:
            return []
        try:
            logits = self._runner.run(chunks)
            ready = [chunk.sequence for chunk in chunks if chunk.completes]
            tokens = sample_rows(logits, [sequence.sampler for sequence in ready])
        except Exception as error:  # the batch is lost, the engine is not: each of its requests says why
            self.counters.num_failed += len(chunks)
            return [self._finish(chunk.sequence, "error", f"{type(error).__name__}: {error}") for chunk in chunks]
        self._store(chunks)
        ended = [s for s, token in zip(ready, tokens, strict=True) if self._append(s, token)]
        self.counters.num_finished += len(ended)
        return [self._finish(sequence, sequence.finish_reason) for sequence in ended]

    def _take_slot(self, sequence: Sequence) -> bool:
        if sequence.state is not None:
            sequence.slot = self.slots.acquire(StateHandle.of(sequence.state))
            if sequence.slot is None:
                return False
        sequence.started = sequence.started or time.monotonic()
        return True

    def _give_slot(self, sequence: Sequence) -> None:
        if sequence.slot is not None:
            self.slots.release(sequence.slot)
            sequence.slot = None

    def _store(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            chunk.sequence.num_stored += chunk.num_tokens
            chunk.sequence.kv.stored(chunk.sequence.num_stored)

    def _append(self, sequence: Sequence, token: int) -> bool:
        """Take a sampled token; True where it ends the sequence."""
        params = sequence.request.sampling
        sequence.first_token = sequence.first_token or time.monotonic()
        sequence.token_ids.append(token)
        self.counters.num_generated_tokens += 1
        ends_turn = token in self.model.config.eos_token_ids and not params.ignore_eos
        if ends_turn or sequence.detokenizer.push(token):
            sequence.finish_reason = "stop"
        elif len(sequence.generated) >= self._admission.max_new_tokens(sequence.request, sequence.num_prompt):
            sequence.finish_reason = "length"
        return bool(sequence.finish_reason)

    def _finish(self, sequence: Sequence, reason: str, error: str = "") -> RequestOutput:
        del self._live[sequence.request_id]
        self._scheduler.remove(sequence)
        usage = sequence.kv.close(len(sequence.generated))
        self.counters.num_preemptions += usage.num_preemptions
        now, text = time.monotonic(), sequence.detokenizer.finish()
        timings = Timings(
            queue_s=(sequence.started or now) - sequence.arrival,
            time_to_first_token_s=(sequence.first_token or now) - sequence.arrival,
            total_s=now - sequence.arrival,
        )
        digest = sequence.state.digest if sequence.state else ""
        return RequestOutput(sequence.request_id, text, sequence.generated, reason, usage, timings, digest, error)


def _geometry(model: LoadedModel, config: EngineConfig) -> KVGeometry:
    num_shared = model.transformer.num_shared_layers
    return KVGeometry(
        num_layers={SHARED: num_shared, SESSION: model.config.num_layers - num_shared},
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        element_bytes=model.dtype.itemsize,
        block_size=config.block_size,
    )


def _slots(model: LoadedModel, config: EngineConfig) -> StateSlots:
    return StateSlots(
        {name: (t.in_features, t.out_features) for name, t in model.config.lora_targets.items()},
        model.transformer.session_layers,
        config.num_state_slots,
        config.max_rank,
        model.dtype if config.state_dtype == "auto" else DTYPES[config.state_dtype],
        model.device,
    )
