"""Counters: one for every component whose presence is a claim."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class EngineCounters:
    """What an engine did since it was made.

    Attributes:
        num_steps: forwards; each was either replayed or run eagerly.
        num_graph_captures: decode steps captured, all of them when the engine was made.
        num_graph_replays, num_eager_steps: forwards by how they ran.
        num_compiled_in_service: Triton kernels compiled (or read from disk) in the process since the engine was made,
            counted where it captures its decode steps.
        num_tokens: tokens run through the session layers.
        num_shared_tokens: those of them that ran through the shared layers too; the rest had their hidden state cached.
        num_state_tokens: those of them that ran with a session state.
        num_adapter_calls: linears of session layers to which states were added (0 while no state is in the batch).
        num_generated_tokens: tokens sampled.
        num_drafted_tokens, num_accepted_tokens: tokens proposed and verified; each accepted one saved its row a step.
        num_preemptions: sequences whose blocks were taken back to be computed again.
        num_finished, num_aborted, num_expired, num_failed: requests by their end.
    """

    num_steps: int = 0
    num_graph_captures: int = 0
    num_graph_replays: int = 0
    num_eager_steps: int = 0
    num_compiled_in_service: int = 0
    num_tokens: int = 0
    num_shared_tokens: int = 0
    num_state_tokens: int = 0
    num_adapter_calls: int = 0
    num_generated_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_expired: int = 0
    num_failed: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass
class RetrievalCounters:
    """What the searches of a ``SessionRAG`` did since it was made.

    Attributes:
        num_searches: calls of ``retrieve_topk``.
        num_questions: questions searched for.
        num_unknown_questions: those of them with no term that the corpus knows; nothing was found for them.
        num_evidence_tokens: token ids that went from the corpus into answer prompts as they are.
        num_overlapped_steps: steps of the engine while a search ran.
    """

    num_searches: int = 0
    num_questions: int = 0
    num_unknown_questions: int = 0
    num_evidence_tokens: int = 0
    num_overlapped_steps: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)
