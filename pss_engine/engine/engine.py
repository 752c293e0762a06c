"""The engine: requests in, outputs out, one batch a step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable

from pss_engine.config import EngineConfig
from pss_engine.engine.admission import Admission
from pss_engine.engine.cuda_graphs import Graphs
from pss_engine.engine.detokenizer import Detokenizer
from pss_engine.engine.drafting import Drafter
from pss_engine.engine.graph_runner import GraphRunner
from pss_engine.engine.model_runner import ModelRunner
from pss_engine.engine.parts import check_memory, decode_graphs, kv_geometry, state_slots
from pss_engine.engine.registry import IDLE_WAIT_S, StateRegistry
from pss_engine.engine.request import Request, RequestOutput
from pss_engine.engine.sampler import TokenSampler, verify
from pss_engine.engine.scheduler import Chunk, Scheduler
from pss_engine.engine.sequence import Sequence
from pss_engine.errors import PSSError, RequestRejected
from pss_engine.kv import KVCache, KVMemory
from pss_engine.metrics import EngineCounters
from pss_engine.models import LoadedModel
from pss_engine.state import SessionState, StateHandle, StateStore


class Engine:
    """Decodes many requests in one batch, each with its own session state or with the base model.

    Not thread-safe: call it from one thread.

    Args:
        graphs: how decode steps are captured; None: in CUDA graphs where they can be had and the config wants them.

    Attributes:
        why_no_graphs: why all steps run eagerly; empty where decode steps are replayed from graphs.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig | None = None, graphs: Graphs | None = None) -> None:
        self.model, self.config = model, config or EngineConfig()
        self.counters = EngineCounters()
        geometry = kv_geometry(model, self.config)
        num_blocks = Admission.num_blocks(geometry, self.config)
        graphs, self.why_no_graphs = (graphs, "") if graphs else decode_graphs(model, self.config)
        # the rows that pad a captured batch live in a block of their own
        num_usable = num_blocks - 1 if graphs else num_blocks
        self.memory = KVMemory(geometry, num_usable, self.config.prefix_caching)
        self.slots = state_slots(model, self.config)
        check_memory(model.device, self.config.kv_cache_bytes)
        self.states = StateRegistry(model, self.slots, self.config.max_rank)
        self._admission = Admission(model, self.config, self.memory.max_tokens)
        cache = KVCache(geometry, num_blocks, model.config.hidden_size, model.dtype, model.device)
        replays = self._graph_runner(graphs, cache) if graphs else None
        self._runner = ModelRunner(model, cache, self.slots, self.counters, replays)
        self._scheduler = Scheduler(self.config, self._take_slot, self._give_slot)
        self._live: dict[str, Sequence] = {}
        self._undelivered: list[RequestOutput] = []
        self._failed_loads: list[tuple[Sequence, Exception]] = []
        self._ids = itertools.count()

    # states

    def add_state(self, state: SessionState) -> None:
        """Register a state under its session id; a later version replaces it for requests that come after.

        Raises:
            StateFormatError: made for another model or tokenizer, or of a rank, layer or shape that does not fit.
        """
        self.states.add(state)

    def add_stored(self, store: StateStore, session: str) -> None:
        """Register the newest stored state of a session; it is read when a request needs it, and checked then.

        Raises:
            SessionNotFound: the store has none.
        """
        self.states.add_stored(store, session)

    def remove_state(self, session: str) -> None:
        """Forget a session's state; requests already in the engine keep theirs. Raises SessionNotFound."""
        self.states.remove(session)

    def pin_state(self, session: str) -> None:
        """Make a session's state resident and keep it so until :meth:`unpin_state`. Blocks while it is read.

        Raises:
            SessionNotFound: no such session.
            CapacityError: no slot can be had, or only the last one, which other sessions need.
        """
        self.states.pin(session)

    def unpin_state(self, session: str) -> None:
        """Let a pinned state be evicted again; nothing where it is not pinned."""
        self.states.unpin(session)

    # requests

    @property
    def num_unfinished(self) -> int:
        return len(self._live)

    @property
    def num_running(self) -> int:
        """Requests that have started; the others wait for memory or for a state."""
        return len(self._scheduler.running)

    def add(self, request: Request, on_text: Callable[[str], None] | None = None) -> str:
        """Queue a request; returns its id. ``on_text`` is called after each of its steps with the settled text so far.

        Raises:
            RequestRejected: empty or too long, an id in use, or a full queue.
            SessionNotFound: no state is registered for its session.
        """
        state = self.states.get(request.session) if request.session is not None else None
        if len(self._scheduler.waiting) >= self.config.max_queued:
            raise RequestRejected(f"queue is full: {self.config.max_queued} requests wait (max_queued)")
        request_id = request.request_id or f"call-{next(self._ids)}"
        if request_id in self._live:
            raise RequestRejected(f"request id {request_id!r} is in use by a live request")
        token_ids = self._admission.prompt_tokens(request)
        kv = self.memory.open(
            request_id,
            len(token_ids),
            agent=request.agent,
            state_bytes=state.num_bytes if state else 0,
            state_digest=state.digest if state else "",
            scope=request.scope,
        )
        sequence = Sequence(
            request,
            request_id,
            token_ids,
            self._admission.max_new_tokens(request, len(token_ids)),
            kv,
            TokenSampler(request.sampling),
            Detokenizer(self.model.tokenizer, request.sampling.stop),
            state,
            self._drafter(request, token_ids, state),
            on_text=on_text,
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
            outputs = self.step()
            if not outputs and not self.num_running:
                self.slots.wait(IDLE_WAIT_S)  # nothing runs before a state is loaded
            for output in outputs:
                if output.request_id not in done:
                    others.append(output)
                    continue
                done[output.request_id] = output
                if on_output:
                    on_output(output)
        self.keep(others)
        return [output for output in done.values() if output is not None]

    def keep(self, outputs: list[RequestOutput]) -> None:
        """Outputs that were not for who took them; the next :meth:`step` returns them."""
        self._undelivered += outputs

    def check(self) -> None:
        """Raise unless blocks, ledger and slots balance."""
        self.memory.check(self._live)
        self.slots.check()

    def _graph_runner(self, graphs: Graphs, cache: KVCache) -> GraphRunner:
        longest = min(self._admission.max_context, self.memory.max_tokens)
        return GraphRunner(
            graphs, self.model, cache, self.slots, self.counters, self.config.max_num_seqs, max(1, longest)
        )

    # inside a step

    def _step(self) -> list[RequestOutput]:
        outputs = self._expire()
        chunks = self._scheduler.schedule()
        outputs += self._fail_loads()
        if not chunks:
            return outputs
        try:
            logits = self._runner.run(chunks)
            ready = [chunk for chunk in chunks if chunk.completes]
            tokens = [
                verify(rows, chunk.draft, chunk.sequence.sampler) for rows, chunk in zip(logits, ready, strict=True)
            ]
        except Exception as error:  # the batch is lost, the engine is not: each of its requests says why
            return outputs + [self._fail(chunk.sequence, error) for chunk in chunks]
        for chunk in chunks:
            if not chunk.completes:
                chunk.sequence.store(chunk.num_pending)
        ended = [c.sequence for c, new in zip(ready, tokens, strict=True) if self._append(c, new)]
        self.counters.num_finished += len(ended)
        return outputs + [self._finish(sequence, sequence.finish_reason) for sequence in ended]

    def _take_slot(self, sequence: Sequence) -> bool:
        if sequence.state is not None:
            try:
                sequence.slot = self.slots.acquire(sequence.state)
            except Exception as error:  # this state cannot be had; its request ends, the others go on
                self._failed_loads.append((sequence, error))
            if sequence.slot is None:
                return False
        sequence.started = sequence.started or time.monotonic()
        return True

    def _give_slot(self, sequence: Sequence) -> None:
        if sequence.slot is not None:
            self.slots.release(sequence.slot)
            sequence.slot = None

    def _append(self, chunk: Chunk, tokens: list[int]) -> bool:
        """Take the sampled tokens of a chunk; True where they end the sequence."""
        num_kept = chunk.sequence.append(chunk, tokens, self.model.config.eos_token_ids)
        self.counters.num_generated_tokens += num_kept
        self.counters.num_drafted_tokens += len(chunk.draft)
        self.counters.num_accepted_tokens += num_kept - 1
        return bool(chunk.sequence.finish_reason)

    def _drafter(self, request: Request, token_ids: list[int], state: StateHandle | None) -> Drafter | None:
        """Greedy requests of a state with a readout are drafted; a sampled one is not, so its draws stay its own."""
        limit = self.config.max_draft_tokens
        if not limit or state is None or not state.meta.readout_token_ids or request.sampling.temperature > 0:
            return None
        return Drafter([state.meta.readout_token_ids, token_ids], limit)

    def _expire(self) -> list[RequestOutput]:
        now = time.monotonic()
        late = [
            sequence
            for sequence in self._live.values()
            if sequence.request.deadline_s is not None and now - sequence.arrival >= sequence.request.deadline_s
        ]
        self.counters.num_expired += len(late)
        return [self._finish(sequence, "deadline") for sequence in late]

    def _fail_loads(self) -> list[RequestOutput]:
        failed, self._failed_loads = self._failed_loads, []
        return [self._fail(sequence, error) for sequence, error in failed]

    def _fail(self, sequence: Sequence, error: Exception) -> RequestOutput:
        self.counters.num_failed += 1
        text = str(error) if isinstance(error, PSSError) else f"{type(error).__name__}: {error}"
        return self._finish(sequence, "error", text)

    def _finish(self, sequence: Sequence, reason: str, error: str = "") -> RequestOutput:
        del self._live[sequence.request_id]
        self._scheduler.remove(sequence)
        output = sequence.close(reason, error)
        self.counters.num_preemptions += output.usage.num_preemptions
        return output
