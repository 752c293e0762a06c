"""Settings of the writer; the defaults are the paper's (PSS, appendix J)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from pss_engine.errors import ConfigError

INSTRUCTION = "Return only a compact search clue for the active session."
OBJECTIVES = (
    "retrieval_aligned",
    "lm_only",
    "query_only",
    "lm_plus_query",
    "multi_field",
    "multi_field_plus_retrieval",
    "records",
)
COVERAGES = ("full", "active_query", "last_128", "first_25", "first_50", "first_75", "shuffled", "card")
DELETIONS = ("active_query", "topic", "entities", "key_evidence", "latest_decision", "superseded_decision")
TOPOLOGIES = ("single", "dual")
PRECISIONS = ("bf16", "fp16_residual", "int8", "int4")
CHOICES = {"objective": OBJECTIVES, "coverage": COVERAGES, "topology": TOPOLOGIES, "precision": PRECISIONS}
LEAST = {"rank": 1, "chunk_tokens": 2, "min_lm_steps": 0, "readout_steps": 1, "max_state_bytes": 1, "last_layers": 0}


@dataclass(frozen=True)
class WriterConfig:
    """How a state is learned.

    Attributes:
        rank, alpha: of the LoRA; its scaling is alpha / rank.
        chunk_tokens: history tokens of one language-modelling update.
        min_lm_steps: updates of phase 1 are max(min_lm_steps, number of chunks), over the chunks in order.
        readout_steps: updates of phase 2.
        lm_learning_rate, readout_learning_rate: of each phase's own AdamW (no weight decay).
        margin: of the hinge between the session's clue and the conflicting one.
        max_grad_norm: gradients are clipped to this norm.
        seed: of the initial factors, and of the order of shuffled chunks.
        max_state_bytes: a larger state is not serialised.
        objective: what is learned (PSS, table 23), or ``records``: four question templates for each record of the
            history, no language modelling (PSS, V.3).
        coverage: which part of the history phase 1 reads (PSS, J.5).
        deletions: what is first removed from the history, sentence by sentence (PSS, J.5).
        topology: ``dual`` splits the rank into two slots: one learns from the history, the other the readout.
        last_layers: only these topmost layers get factors; 0: all above the model's cut.
        precision: of the stored state: bfloat16; bfloat16 with a float16 residual; int8 or int4 against the initial
            factors.
        stable: float64 masters and moments on the CPU.
        early_stop_loss: the readout phase ends once l(z+) is below this and the hinge asks for nothing; 0: never.
    """

    rank: int = 32
    alpha: float = 64.0
    chunk_tokens: int = 128
    min_lm_steps: int = 16
    readout_steps: int = 64
    lm_learning_rate: float = 2e-5
    readout_learning_rate: float = 1e-4
    margin: float = 0.2
    max_grad_norm: float = 1.0
    seed: int = 91
    max_state_bytes: int = 64 * 1024 * 1024
    objective: str = "retrieval_aligned"
    instruction: str = INSTRUCTION
    coverage: str = "full"
    deletions: tuple[str, ...] = ()
    topology: str = "single"
    last_layers: int = 0
    precision: str = "bf16"
    stable: bool = False
    early_stop_loss: float = 0.0

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} {getattr(self, name)!r} is unknown; choices: {', '.join(choices)}")
        object.__setattr__(self, "deletions", tuple(self.deletions))
        for deletion in self.deletions:
            if deletion not in DELETIONS:
                raise ConfigError(f"deletion {deletion!r} is unknown; choices: {', '.join(DELETIONS)}")
        if self.topology == "dual" and self.rank % 2:
            raise ConfigError(f"rank is {self.rank}; two slots need an even one")

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank

    def to_dict(self) -> dict[str, Any]:
        """JSON values; :meth:`from_dict` reads them back."""
        return {**asdict(self), "deletions": list(self.deletions)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> WriterConfig:
        """Raises ConfigError for a name that is no setting."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"writer setting {unknown[0]!r} is unknown; choices: {', '.join(sorted(known))}")
        return cls(**values)
