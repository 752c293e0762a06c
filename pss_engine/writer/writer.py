"""``Writer``: histories and their targets in, verified session states out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property

import torch

from pss_engine.errors import CapacityError, ConfigError, PSSError
from pss_engine.models import LoadedModel
from pss_engine.state import SessionState, StateMeta, StateShape
from pss_engine.state.adapter import state_files
from pss_engine.state.precision import rounded
from pss_engine.writer.config import WriterConfig
from pss_engine.writer.extraction import find_targets
from pss_engine.writer.factors import FactorStack
from pss_engine.writer.history import History, as_lines
from pss_engine.writer.learner import Learner
from pss_engine.writer.memory import free_bytes, num_sessions, session_bytes
from pss_engine.writer.network import SessionNetwork
from pss_engine.writer.objectives import phases
from pss_engine.writer.targets import SessionTargets
from pss_engine.writer.trainer import Trainer, UpdateCounters

BATCH_SETTINGS = ("rank", "alpha", "last_layers", "margin", "max_grad_norm", "stable")
Progress = Callable[[str, int, int, float], None]
"""``progress(phase, updates done in it, updates in it, loss)``; phases are ``history`` and ``readout``."""


@dataclass(frozen=True)
class WriteJob:
    """One state to be written.

    Attributes:
        history: what is compiled; with ``parent`` the new turns only.
        targets: z+ and z-; None takes the history's own, or extracts them from the turns.
        targets_from: where given targets come from, for the record.
        parent: a state to go on from.
        config: None: the writer's; it may differ from that in what does not concern the whole batch.
        readout_only: only the readout is learned, from where ``parent`` stands; the history is not read.
    """

    session_id: str
    history: History
    targets: SessionTargets | None = None
    parent: SessionState | None = None
    config: WriterConfig | None = None
    readout_only: bool = False
    targets_from: str = ""


@dataclass(frozen=True)
class Written:
    """How a job ended: with a state, or with the error of this session alone."""

    job: WriteJob
    state: SessionState | None
    error: PSSError | None
    losses: Mapping[str, Sequence[float]]


class Writer:
    """Compiles sessions into states, training above the cut only (PSS, appendix J).

    Args:
        memory_bytes: for the sessions learned at once, beside the model; 0: half of what is free. Where memory runs out
            all the same, their number is halved and they begin again.
    """

    def __init__(self, model: LoadedModel, config: WriterConfig | None = None, memory_bytes: int = 0) -> None:
        self.model, self.config, self.memory_bytes = model, config or WriterConfig(), memory_bytes
        self.counters = UpdateCounters()
        above = len(model.transformer.session_layers)
        if self.config.last_layers > above:
            raise ConfigError(
                f"last_layers is {self.config.last_layers}; the model's cut leaves {above} session layers"
            )

    @property
    def num_layers(self) -> int:
        """Layers that get factors."""
        return self.config.last_layers or len(self.model.transformer.session_layers)

    @property
    def shape(self) -> StateShape:
        """Where this model takes states."""
        config = self.model.config
        return StateShape(config.num_layers, config.lora_shapes, self.model.transformer.num_shared_layers)

    @cached_property
    def network(self) -> SessionNetwork:
        """The frozen layers with what their gradients need: on the CPU a transposed copy of each weight."""
        return SessionNetwork(self.model, self.num_layers)

    def targets(self, job: WriteJob) -> tuple[SessionTargets, str]:
        """What a job's state learns to say, and where that comes from; errors as :func:`find_targets`."""
        found, source = find_targets(job.history, job.targets, lambda text: len(self.model.tokenizer.encode(text)))
        return found, job.targets_from or source

    def digest(self, job: WriteJob) -> str:
        """SHA-256 (hex) of all that decides a state: history, targets, settings, model, tokenizer, parent."""
        config = job.config or self.config
        content = {
            "turns": [dict(turn) for turn in job.history.turns],
            "records": [[record.name, record.text] for record in job.history.records],
            "targets": self.targets(job)[0].to_dict(),
            "writer": config.to_dict(),
            "model": self.model.fingerprint,
            "tokenizer": self.model.tokenizer.fingerprint,
            "parent": job.parent.digest if job.parent else None,
            "readout_only": job.readout_only,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def write(
        self,
        session_id: str,
        history: History,
        targets: SessionTargets | None = None,
        progress: Progress | None = None,
    ) -> SessionState:
        """Compile a history into a state. Deterministic for a seed, a machine and a thread count.

        Args:
            targets: z+ and z-; None takes the history file's own, or extracts them from the turns.
            progress: called after every update.

        Raises:
            LearningFailed: a loss or gradient that is not finite.
            CapacityError: the state is over ``max_state_bytes``, or memory is too small.
            StateFormatError: a factor is not finite; nothing is returned.
        """
        return self.write_job(WriteJob(session_id, history, targets), progress)

    def write_job(self, job: WriteJob, progress: Progress | None = None) -> SessionState:
        """One job alone; errors as :meth:`write`."""

        def on_step(_: WriteJob, phase: str, done: int, total: int, loss: float) -> None:
            if progress:
                progress(phase, done, total, loss)

        (written,) = self.write_many([job], on_step)
        if written.error is not None:
            raise written.error
        assert written.state is not None
        return written.state

    def write_many(
        self,
        jobs: Sequence[WriteJob],
        on_step: Callable[[WriteJob, str, int, int, float], None] | None = None,
        on_written: Callable[[Written], None] | None = None,
        max_sessions: int = 0,
    ) -> list[Written]:
        """As :meth:`run`; all are returned, in the order of the jobs."""
        found: dict[str, Written] = {}

        def done(written: Written) -> None:
            found[written.job.session_id] = written
            if on_written:
                on_written(written)

        self.run(jobs, on_step, done, max_sessions)
        return [found[job.session_id] for job in jobs]

    def run(
        self,
        jobs: Sequence[WriteJob],
        on_step: Callable[[WriteJob, str, int, int, float], None] | None,
        on_written: Callable[[Written], None],
        max_sessions: int = 0,
    ) -> None:
        """Compile many histories in one batch and hand each state over as it is learned; none is kept here.

        Args:
            jobs: of different sessions.
            on_step: called after every update with job, phase, updates done in it, updates in it, loss.
            on_written: called as each session ends.
            max_sessions: learned at once; 0: as many as the memory budget allows.

        Raises:
            ConfigError: an objective, coverage or deletion that lacks its target; nothing is written.
            CapacityError: not even one session fits into memory.
        """
        if not jobs:
            return
        learners = [self._learner(job) for job in jobs]
        job_of = {id(learner): job for learner, job in zip(learners, jobs, strict=True)}

        def step(learner: Learner, phase: str, done: int, loss: float) -> None:
            if on_step:
                on_step(job_of[id(learner)], phase, done, learner.num_steps(phase), loss)

        def done(learner: Learner, stack: FactorStack) -> None:
            on_written(self._written(job_of[id(learner)], learner, stack))
            learner.phases.clear()

        trainer = Trainer(self.network, self.config, max_sessions or self._num_slots(learners))
        self.counters = trainer.counters
        trainer.run(learners, step, done)

    def _learner(self, job: WriteJob) -> Learner:
        config, parent = job.config or self.config, job.parent
        _check_alike(job, config, self.config)
        initial = None
        if parent is not None:
            _check_parent(job, config, self.network)
            initial = {key: (pair.a.float(), pair.b.float()) for key, pair in parent.factors.items()}
        plan = phases(config, self.model.tokenizer, job.history, self.targets(job)[0])
        if job.readout_only:
            plan = [phase for phase in plan if phase.name == "readout"]
        return Learner(job.session_id, plan, config.seed, initial, config.early_stop_loss)

    def _num_slots(self, learners: Sequence[Learner]) -> int:
        longest = max(lesson.num_rows for learner in learners for phase in learner.phases for lesson in phase.lessons)
        each = session_bytes(self.config, self.model.config, self.num_layers, longest)
        budget = self.memory_bytes or free_bytes(self.model.device)
        return min(len(learners), num_sessions(budget, each))

    def _written(self, job: WriteJob, learner: Learner, stack: FactorStack) -> Written:
        losses = learner.losses.by_phase
        if learner.failure is not None:
            return Written(job, None, learner.failure, losses)
        try:
            return Written(job, self._state(job, stack, learner.slot), None, losses)
        except PSSError as error:
            return Written(job, None, error, losses)

    def _state(self, job: WriteJob, stack: FactorStack, slot: int) -> SessionState:
        config, tokenizer = job.config or self.config, self.model.tokenizer
        targets, source = self.targets(job)
        meta = StateMeta(
            model_fingerprint=self.model.fingerprint,
            tokenizer_fingerprint=tokenizer.fingerprint,
            base_model=self.model.name,
            writer=config.to_dict(),
            seed=config.seed,
            created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            num_history_tokens=len(tokenizer.encode(as_lines(job.history.turns))),
            clue=targets.clue,
            negative_clue=targets.negative_clue,
            targets={**targets.to_dict(), "source": source},
            write_digest=self.digest(job),
            parent=job.parent.digest if job.parent else None,
        )
        learned = {key: (a.detach().cpu(), b.detach().cpu()) for key, (a, b) in stack.pairs(slot).items()}
        factors = rounded(learned, config.precision, config.seed)
        state = SessionState.from_tensors(job.session_id, factors, config.alpha, meta=meta)
        dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        state.check(shape=self.shape, max_rank=config.rank, dtype=dtype)
        if (num_bytes := sum(map(len, state_files(state).values()))) > config.max_state_bytes:
            raise CapacityError("state budget", num_bytes, config.max_state_bytes, "bytes")
        return state


def _check_alike(job: WriteJob, config: WriterConfig, writer: WriterConfig) -> None:
    """All sessions of a batch share its stack and its rules; they differ in what they learn, and for how long."""
    for name in BATCH_SETTINGS:
        if getattr(config, name) != getattr(writer, name):
            raise ConfigError(
                f"session {job.session_id}: {name} is {getattr(config, name)}, the writer's is "
                f"{getattr(writer, name)}; in one batch these are alike: {', '.join(BATCH_SETTINGS)}"
            )


def _check_parent(job: WriteJob, config: WriterConfig, network: SessionNetwork) -> None:
    parent = job.parent
    assert parent is not None
    layers, modules = network.transformer.session_layers, network.config.lora_targets
    missing = {(layer, module) for layer in layers for module in modules} ^ set(parent.factors)
    ranks = {pair.rank for pair in parent.factors.values()} | {config.rank}
    if missing or len(ranks) > 1:
        raise ConfigError(
            f"session {job.session_id}: its state has ranks {sorted(ranks - {config.rank}) or [config.rank]} on layers "
            f"{list(parent.layers)}, the writer's are {config.rank} on {list(layers)}: "
            "write it anew, or set the writer alike"
        )
