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
        num_fused_steps: eager ones whose layers ran a side of the cut at a time.
        num_compiled_in_service: Triton kernels compiled (or read from disk) in the process since the engine was made,
            counted where it captures its decode steps.
        num_tokens: tokens run through the session layers.
        num_shared_tokens: those of them that ran through the shared layers too; the rest had their hidden state cached.
        num_state_tokens: those of them that ran with a session state.
        num_adapter_calls: linears of session layers to which states were added (0 while no state is in the batch).
        num_generated_tokens: tokens sampled.
        num_drafted_tokens, num_accepted_tokens: tokens proposed and verified; each accepted one saved its row a step.
        num_preemptions: sequences whose blocks were taken back to be computed again.
        num_audits, num_audit_alarms: times that the KV books were proved in service, and that they did not balance.
        num_finished, num_aborted, num_expired, num_failed: requests by their end.
    """

    num_steps: int = 0
    num_graph_captures: int = 0
    num_graph_replays: int = 0
    num_eager_steps: int = 0
    num_fused_steps: int = 0
    num_compiled_in_service: int = 0
    num_tokens: int = 0
    num_shared_tokens: int = 0
    num_state_tokens: int = 0
    num_adapter_calls: int = 0
    num_generated_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    num_audits: int = 0
    num_audit_alarms: int = 0
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


@dataclass
class AgentCounters:
    """What the agent pipeline and its memory did. A run summary prints every one of them, also those that are 0.

    Attributes:
        num_calls: calls of models; num_call_faults: those of them that brought no answer.
        num_malformed, num_repaired: replies that could not be read, and those read after they were asked for again.
        num_unreadable: nodes whose reply stayed malformed.
        num_loops, num_rejections: loops of the Reasoner, and verdicts below the threshold.
        num_re_reasoned, num_re_retrieved: loops by the route that led to them.
        num_gave_up: sub-questions and answers that no attempt of theirs was accepted for.
        num_units_written, num_units_reused, num_unit_faults, num_unit_damaged: Communication Units in tier 2.
        num_evidence_searches, num_reranked: ``search_reranked`` and the passages that it scored again.
        num_recall_searches, num_recalled: ``search_outputs`` and the traces that it brought.
        num_traces_written, num_traces_lost, num_trace_faults: ``store_qkv`` and what became of traces.
        num_clues: search texts that a session state gave.
    """

    num_calls: int = 0
    num_call_faults: int = 0
    num_malformed: int = 0
    num_repaired: int = 0
    num_unreadable: int = 0
    num_loops: int = 0
    num_rejections: int = 0
    num_re_reasoned: int = 0
    num_re_retrieved: int = 0
    num_gave_up: int = 0
    num_units_written: int = 0
    num_units_reused: int = 0
    num_unit_faults: int = 0
    num_unit_damaged: int = 0
    num_evidence_searches: int = 0
    num_reranked: int = 0
    num_recall_searches: int = 0
    num_recalled: int = 0
    num_traces_written: int = 0
    num_traces_lost: int = 0
    num_trace_faults: int = 0
    num_clues: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """What was added to an earlier ``to_dict``."""
        return {name: value - before[name] for name, value in self.to_dict().items()}
