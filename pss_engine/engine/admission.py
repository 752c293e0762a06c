"""The door of the engine: what may come in, and what is refused with its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from pss_engine.config import EngineConfig
from pss_engine.engine.request import Request
from pss_engine.errors import ConfigError, RequestRejected
from pss_engine.kv import GROUPS, KVGeometry
from pss_engine.models import LoadedModel


class Admission:
    """Limits of one engine on one model. ``max_cached_tokens`` is what the KV cache holds for a single request."""

    def __init__(self, model: LoadedModel, config: EngineConfig, max_cached_tokens: int) -> None:
        self._model, self._max_cached_tokens = model, max_cached_tokens
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

    def prompt_tokens(self, request: Request) -> list[int]:
        """Tokens of a request's prompt, checked against every limit.

        Raises:
            RequestRejected: an empty prompt, an id outside the vocabulary, or more tokens than fit.
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
        needed = len(token_ids) + self.max_new_tokens(request, len(token_ids))
        if needed > self._max_cached_tokens:
            raise RequestRejected(
                f"prompt and output need {needed} tokens of KV; the cache holds {self._max_cached_tokens}"
            )
        return token_ids

    def max_new_tokens(self, request: Request, num_prompt: int) -> int:
        """What was asked for, ended by the context."""
        return min(request.sampling.max_new_tokens, self.max_context - num_prompt)

    def _tokenize(self, request: Request) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, str):
            return self._model.tokenizer.prompt(prompt) if prompt else []
        if all(isinstance(item, Mapping) for item in prompt):
            return self._model.tokenizer.chat(prompt) if prompt else []  # type: ignore[arg-type]
        if all(isinstance(item, int) for item in prompt):
            return list(prompt)  # type: ignore[arg-type]
        raise RequestRejected("prompt mixes kinds; choices: a string, a list of messages, a list of token ids")
