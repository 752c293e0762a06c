"""The door of the engine: what may come in, and what is refused with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pss_engine.config import EngineConfig
from pss_engine.engine.budget import within_budget
from pss_engine.engine.request import Request
from pss_engine.errors import ConfigError, RequestRejected
from pss_engine.kv import GROUPS, KVGeometry, KVMemory
from pss_engine.models import LoadedModel


@dataclass(frozen=True)
class Admitted:
    """A request that may come in: its prompt, and how far it may go.

    Attributes:
        max_new_tokens: what was asked for, ended by the context and by KV budgets.
        truncated_tokens: those that budgets took.
    """

    token_ids: list[int]
    max_new_tokens: int
    truncated_tokens: int


class Admission:
    """Limits of one engine on one model."""

    def __init__(self, model: LoadedModel, config: EngineConfig, memory: KVMemory) -> None:
        self._model, self._memory = model, memory
        if config.max_context > model.config.max_context:
            raise ConfigError(f"max_context {config.max_context} is over the model's {model.config.max_context} tokens")
        self.max_context = config.max_context or model.config.max_context

    @staticmethod
    def num_blocks(geometry: KVGeometry, config: EngineConfig) -> int:
        """Blocks of each layer group that the configured KV memory holds."""
        block_bytes = sum(geometry.block_bytes(group) for group in GROUPS) + geometry.hidden_block_bytes
        if config.kv_cache_bytes < block_bytes:
            raise ConfigError(f"kv_cache_bytes {config.kv_cache_bytes} is less than one block of {block_bytes} bytes")
        return config.kv_cache_bytes // block_bytes

    def admit(self, request: Request) -> Admitted:
        """Check a request against every limit.

        Raises:
            RequestRejected: an empty prompt, an id outside the vocabulary, more tokens than fit, or more KV than its
                budgets allow.
        """
        token_ids = self._tokenize(request)
        if not token_ids:
            raise RequestRejected("prompt is empty; send at least one token")
        vocab_size = self._model.config.vocab_size
        if wrong := next((t for t in token_ids if not 0 <= t < vocab_size), None):
            raise RequestRejected(f"token id {wrong} is outside the vocabulary of {vocab_size}")
        if len(token_ids) >= self.max_context:
            raise RequestRejected(
                f"prompt has {len(token_ids)} tokens; the context holds {self.max_context} with the answer"
            )
        asked = min(request.sampling.max_new_tokens, self.max_context - len(token_ids))
        planned = self._memory.ledger.planned(request.query)
        allowed = within_budget(request, len(token_ids), asked, self._memory.geometry, planned)
        if len(token_ids) + allowed > self._memory.max_tokens:
            raise RequestRejected(
                f"prompt and output need {len(token_ids) + allowed} tokens of KV;"
                f" the cache holds {self._memory.max_tokens}"
            )
        return Admitted(token_ids, allowed, asked - allowed)

    def _tokenize(self, request: Request) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, str):
            return self._model.tokenizer.prompt(prompt) if prompt else []
        if all(isinstance(item, Mapping) for item in prompt):
            return self._model.tokenizer.chat(prompt) if prompt else []  # type: ignore[arg-type]
        if all(isinstance(item, int) for item in prompt):
            return list(prompt)  # type: ignore[arg-type]
        raise RequestRejected("prompt mixes kinds; choices: a string, a list of messages, a list of token ids")
