"""Settings of the writer; the defaults are the paper's (PSS, appendix J)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pss_engine.errors import ConfigError

INSTRUCTION = "Return only a compact search clue for the active session."


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
        seed: of the initial factors.
        max_state_bytes: a larger state is not serialised.
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

    def __post_init__(self) -> None:
        for name in ("rank", "chunk_tokens", "readout_steps", "max_state_bytes"):
            if getattr(self, name) < (2 if name == "chunk_tokens" else 1):
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be at least {2 if name == 'chunk_tokens' else 1}"
                )
        if self.objective != "retrieval_aligned":
            raise ConfigError(f"objective {self.objective!r} is unknown; choices: retrieval_aligned")

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
