"""``Writer``: a history and its targets in, a verified session state out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

import torch

from pss_engine.models import LoadedModel
from pss_engine.state import SessionState, StateMeta, StateShape
from pss_engine.writer.config import WriterConfig
from pss_engine.writer.factors import TrainableFactors
from pss_engine.writer.history import History
from pss_engine.writer.prompts import readout_messages
from pss_engine.writer.targets import SessionTargets, extract_targets
from pss_engine.writer.trainer import Trainer

Progress = Callable[[str, int, int, float], None]
"""``progress(phase, updates done, updates in all, loss)``; phases are ``history`` and ``readout``."""


class Writer:
    """The ``retrieval_aligned`` writer (PSS, appendix J), training above the cut only."""

    def __init__(self, model: LoadedModel, config: WriterConfig | None = None) -> None:
        self.model, self.config = model, config or WriterConfig()

    @property
    def shape(self) -> StateShape:
        """Where this model takes states."""
        config = self.model.config
        return StateShape(config.num_layers, config.lora_shapes, self.model.transformer.num_shared_layers)

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
            CapacityError: the state is over ``max_state_bytes``.
            StateFormatError: a factor is not finite; nothing is returned.
        """
        config, tokenizer = self.config, self.model.tokenizer
        targets = targets or history.targets or extract_targets(history.turns)
        chunks = history.chunks(tokenizer, config.chunk_tokens)
        layers = self.model.transformer.session_layers
        factors = TrainableFactors(
            self.model.config, layers, config.rank, config.scaling, config.seed, self.model.device
        )
        trainer = Trainer(self.model, config, factors)
        total = {"history": max(config.min_lm_steps, len(chunks)), "readout": config.readout_steps}
        done = dict.fromkeys(total, 0)

        def on_step(phase: str, loss: float) -> None:
            done[phase] += 1
            if progress:
                progress(phase, done[phase], total[phase], loss)

        trainer.language_model(chunks, on_step)
        prompt = tokenizer.chat(readout_messages(config.instruction))
        trainer.readout(prompt, self._clue(targets.clue), self._clue(targets.negative_clue), on_step)
        meta = StateMeta(
            model_fingerprint=self.model.fingerprint,
            tokenizer_fingerprint=tokenizer.fingerprint,
            base_model=self.model.name,
            writer=config.to_dict(),
            seed=config.seed,
            created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            num_history_tokens=sum(len(chunk) for chunk in chunks),
            clue=targets.clue,
            negative_clue=targets.negative_clue,
        )
        state = SessionState.from_tensors(session_id, _snapshot(factors), config.alpha, meta=meta)
        state.check(shape=self.shape, max_rank=config.rank, max_bytes=config.max_state_bytes, dtype=torch.bfloat16)
        return state

    def _clue(self, text: str) -> list[int]:
        """A clue as the model would say it: its tokens, then the end of the turn."""
        if not text.strip():
            return []
        end = self.model.tokenizer.eos_token_id
        return self.model.tokenizer.encode(text.strip()) + ([end] if end is not None else [])


def _snapshot(factors: TrainableFactors) -> dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]:
    """The factors as they are stored: bfloat16 on the CPU."""

    def stored(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("cpu", torch.bfloat16)

    return {key: (stored(a), stored(b)) for key, (a, b) in factors.pairs.items()}
