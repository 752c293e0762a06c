"""The engine: requests in, outputs out, one batch a step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pss_engine.config import EngineConfig
from pss_engine.engine.admission import Admission
from pss_engine.engine.audit import Audit
from pss_engine.engine.cuda_graphs import Graphs
from pss_engine.engine.detokenizer import Detokenizer
from pss_engine.engine.device_memory import DeviceMemory, MemoryMeter
from pss_engine.engine.drafting import Drafter
from pss_engine.engine.fused_transformer import FusedTransformer, why_not_fused
from pss_engine.engine.graph_runner import GraphRunner
from pss_engine.engine.model_runner import ModelRunner
from pss_engine.engine.parts import check_memory, decode_graphs, kv_dtype, kv_geometry, state_slots, with_activations
from pss_engine.engine.registry import IDLE_WAIT_S, StateRegistry
from pss_engine.engine.request import Request, RequestOutput
from pss_engine.engine.sampler import next_tokens
from pss_engine.engine.scheduler import Chunk, Scheduler
from pss_engine.engine.sequence import Sequence
from pss_engine.errors import PSSError, RequestRejected
from pss_engine.kv import KVCache, KVMemory, Timeline
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
        why_not_fused: why layers run op by op; empty where eager steps run a side of the cut in one call.
        activations: what rows are taken in before quantised weights, ``float32`` or ``int8``.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig | None = None, graphs: Graphs | None = None) -> None:
        self.config = config or EngineConfig()
        self.model = model
        served, self.activations = with_activations(model, self.config)
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
        self._admission = Admission(model, self.config, self.memory)
        self._audit = Audit(self.memory, self.counters, self.config.audit_steps, self.config.audit_folder)
        self._timeline = Timeline(Path(self.config.kv_timeline), geometry) if self.config.kv_timeline else None
        cache = KVCache(
            geometry,
            num_blocks,
            model.config.hidden_size,
            kv_dtype(model, self.config),
            model.device,
            hidden_dtype=model.dtype,
        )
        self._meter = MemoryMeter(model, cache, self.slots)
        replays = self._graph_runner(graphs, cache) if graphs else None
        self.why_not_fused = why_not_fused(model) if self.config.fused_layers else "fused_layers=False"
        fused = None if self.why_not_fused else FusedTransformer(served.transformer, cache, self.slots, self.counters)
        self._runner = ModelRunner(served, cache, self.slots, self.counters, replays, fused)
        self._scheduler = Scheduler(self.config, self._take_slot, self._give_slot)
        self._live: dict[str, Sequence] = {}
        self._undelivered: list[RequestOutput] = []
        self._failed_loads: list[tuple[Sequence, Exception]] = []
        self._ids, self._query_ids = itertools.count(), itertools.count()

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

    def forget_state(self, session: str) -> int:
        """Remove a session's state from all memory: its registration, its rows in slots and host memory, which are
        zeroed, and all cached prefixes that no live request holds; returns how many prefix blocks went.

        A state that another session has too stays for that session.

        Raises:
            SessionNotFound: no such session.
            CapacityError: a live request holds the state; it stays registered.
        """
        self.states.forget(session)
        return self.memory.forget_prefixes()

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

    def new_query(self) -> str:
        """An id that no query has had, for requests whose calls are accounted together."""
        return f"query-{next(self._query_ids)}"

    def add(self, request: Request, on_text: Callable[[str], None] | None = None) -> str:
        """Queue a request; returns its id. ``on_text`` is called after each of its steps with the settled text so far.

        Raises:
            RequestRejected: empty or too long, over its KV budget, an id in use, or a full queue.
            SessionNotFound: no state is registered for its session.
        """
        state = self.states.get(request.session) if request.session is not None else None
        if len(self._scheduler.waiting) >= self.config.max_queued:
            raise RequestRejected(f"queue is full: {self.config.max_queued} requests wait (max_queued)")
        request_id = request.request_id or f"call-{next(self._ids)}"
        if request_id in self._live:
            raise RequestRejected(f"request id {request_id!r} is in use by a live request")
        admitted = self._admission.admit(request)
        token_ids = admitted.token_ids
        kv = self.memory.open(
            request_id,
            len(token_ids),
            query=request.query,
            session=request.usage_session or request.session or "",
            agent=request.agent,
            max_new_tokens=admitted.max_new_tokens,
            truncated_tokens=admitted.truncated_tokens,
            state_bytes=state.num_bytes if state else 0,
            state_digest=state.digest if state else "",
            scope=request.scope,
        )
        sequence = Sequence(
            request,
            request_id,
            token_ids,
            admitted.max_new_tokens,
            kv,
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
        output = self._finish(sequence, "abort")
        self._record()
        return output

    def step(self) -> list[RequestOutput]:
        """Run one batch; returns the requests that ended in it."""
        undelivered, self._undelivered = self._undelivered, []
        outputs = self._step()
        self._record()
        self._audit.step(self._live)
        return undelivered + outputs

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

    def device_memory(self) -> DeviceMemory:
        """Where the memory of the process went: weights, states, KV, activations, and what is left, by name."""
        return self._meter.read()

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
        self._record()  # what a step holds is most before it ends its requests
        try:
            logits = self._runner.run(chunks)
            ready = [chunk for chunk in chunks if chunk.completes]
            tokens = next_tokens(logits, ready)
        except Exception as error:  # the batch is lost, the engine is not: each of its requests says why
            return outputs + [self._fail(chunk.sequence, error) for chunk in chunks]
        for chunk in chunks:
            if not chunk.completes:
                chunk.sequence.store(chunk.num_pending)
        ended = [c.sequence for c, new in zip(ready, tokens, strict=True) if self._append(c, new)]
        self.counters.num_finished += len(ended)
        return outputs + [self._finish(sequence, sequence.finish_reason) for sequence in ended]

    def _record(self) -> None:
        if self._timeline is not None:
            self._timeline.record(self.counters.num_steps, self.memory)

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
