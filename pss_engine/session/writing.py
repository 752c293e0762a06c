"""From histories to stored states: written in a batch, read out, checked, stored as each is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pss_engine.engine import Engine, SamplingParams
from pss_engine.errors import ConfigError, PSSError, StateFormatError
from pss_engine.session.proposals import with_proposals
from pss_engine.session.readout import ReadoutGate, checked, record_readout
from pss_engine.state import SessionState, StateMeta, StateRecord, StateStore
from pss_engine.state.sealing import WrongKey
from pss_engine.writer import History, SessionTargets, WriteJob, Writer, Written

OnStep = Callable[[WriteJob, str, int, int, float], None]
CONTINUE_STEPS = 24
"""Readout updates of a state that goes on: it has learned to answer the instruction before."""


@dataclass(frozen=True)
class Stored:
    """What became of a job: the record of the state now in the store (``new``: written in this call), or why there is
    none."""

    session_id: str
    record: StateRecord | None = None
    error: PSSError | None = None
    new: bool = True


class StateWriting:
    """Writes states with one writer into one store, reading each out with one engine of the same model.

    Args:
        gate: None: readouts are recorded and not judged.
        ask_base: let the base model vote on extracted targets, see :func:`with_proposals`.
    """

    def __init__(
        self,
        engine: Engine,
        store: StateStore,
        writer: Writer,
        gate: ReadoutGate | None = None,
        max_readout_tokens: int = 64,
        ask_base: bool = False,
    ) -> None:
        self._ask_base = ask_base
        self._engine, self._store, self.writer, self._gate = engine, store, writer, gate
        self._sampling = SamplingParams(max_new_tokens=max_readout_tokens)

    def is_stored(self, job: WriteJob) -> bool:
        """Whether the session's current state was written from exactly this job."""
        if job.session_id not in self._store:
            return False
        try:
            return self._store.record(job.session_id).meta.write_digest == self.writer.digest(job)
        except WrongKey:
            raise
        except StateFormatError:  # damaged: written anew, the store repairs it
            return False

    def write(
        self,
        jobs: Sequence[WriteJob],
        on_step: OnStep | None = None,
        on_stored: Callable[[Stored], None] | None = None,
        max_sessions: int = 0,
    ) -> list[Stored]:
        """Write the jobs whose state is not in the store yet; each state is stored as soon as it is learned.

        A state whose readout misses the gate is stored and flagged, then learned further as far as the gate allows;
        the best of its attempts stays.

        Raises:
            ConfigError: a session id that comes twice; nothing is written.
        """
        _check_distinct(jobs)
        if self._ask_base:
            jobs = with_proposals(self._engine, jobs)
        found: dict[str, Stored] = {}

        def settle(stored: Stored) -> None:
            found[stored.session_id] = stored
            if on_stored:
                on_stored(stored)

        waiting = []
        for job in jobs:
            if self.is_stored(job):
                settle(Stored(job.session_id, self._store.record(job.session_id), new=False))
            else:
                waiting.append(job)
        attempts = 1
        while waiting:
            retries = {
                job.session_id: job for job in self._round(waiting, attempts, found, on_step, settle, max_sessions)
            }
            attempts += 1
            waiting = list(retries.values())
        return [found[job.session_id] for job in jobs]

    def go_on(
        self, session_id: str, turns: History, targets: SessionTargets | None = None, on_step: OnStep | None = None
    ) -> Stored:
        """Continue a session's state with new turns: one update for each of their chunks, then a short readout phase.

        What was the clue becomes the negative one, where the new targets name none.

        Raises:
            SessionNotFound: there is no state to go on from.
        """
        parent = self._store.get(session_id)
        config = replace(self.writer.config, min_lm_steps=0, readout_steps=CONTINUE_STEPS)
        found, _ = self.writer.targets(WriteJob(session_id, turns, targets))
        before = parent.meta.clue or ""
        if not found.negative_clue or found.negative_clue == before:
            found = replace(found, negative_clue=before if before.strip() != found.clue.strip() else "")
        return self.write([WriteJob(session_id, turns, found, parent, config)], on_step)[0]

    def _round(
        self,
        jobs: Sequence[WriteJob],
        attempts: int,
        found: dict[str, Stored],
        on_step: OnStep | None,
        settle: Callable[[Stored], None],
        max_sessions: int,
    ) -> Iterator[WriteJob]:
        """Write jobs; returns those to be learned further."""
        retries: list[WriteJob] = []

        def written(result: Written) -> None:
            job, before = result.job, found.get(result.job.session_id)
            if result.state is None:
                if before is None:
                    settle(Stored(job.session_id, error=result.error))
                return
            state = record_readout(self._engine, result.state, self._sampling)
            if self._gate is not None:
                state = checked(state, self._gate, attempts)
            if again := self._retry(job, state, attempts):
                retries.append(again)
            if before is not None and before.record is not None:
                known = before.record.meta
                if _recall(state.meta) <= _recall(known):
                    return
                # further updates are part of the same write: it is found by what it was asked for
                meta = replace(state.meta, write_digest=known.write_digest, parent=known.parent)
                state = replace(state, meta=meta)
            self._store.put(state)
            settle(Stored(job.session_id, StateRecord(job.session_id, state.digest, state.num_bytes, state.meta)))

        self.writer.run(jobs, on_step, written, max_sessions)
        return iter(retries)

    def _retry(self, job: WriteJob, state: SessionState, attempts: int) -> WriteJob | None:
        gate = self._gate
        if gate is None or attempts > gate.max_retries or state.meta.readout_check.get("passed", True):
            return None
        config = replace(job.config or self.writer.config, readout_steps=gate.retry_steps)
        return replace(job, parent=state, config=config, readout_only=True)


def _recall(meta: StateMeta) -> float:
    return float(meta.readout_check.get("recall", 0.0))


def _check_distinct(jobs: Sequence[WriteJob]) -> None:
    seen: set[str] = set()
    for job in jobs:
        if job.session_id in seen:
            raise ConfigError(
                f"session {job.session_id} comes twice in the batch; give each history its own session id"
            )
        seen.add(job.session_id)
