"""What a model's KV comes to at a context and a batch, and how many sessions fit a memory. No weights are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pss_engine.errors import ConfigError
from pss_engine.kv.geometry import GROUPS, SHARED, element_bytes
from pss_engine.kv.layers import LayerKV, ModelKV


@dataclass(frozen=True)
class KVPlan:
    """KV of sequences of one length.

    Attributes:
        context: tokens of a sequence, prompt and output.
        batch: sequences that live together.
        num_session_layers: layers above the cut.
        common_tokens: leading tokens that all sessions have in common.

    Raises:
        ConfigError: a number out of range, or an unknown dtype.
    """

    model: ModelKV
    kv_dtype: str
    block_size: int
    context: int
    batch: int
    num_session_layers: int
    common_tokens: int

    def __post_init__(self) -> None:
        element_bytes(self.kv_dtype)
        for name in ("block_size", "context", "batch", "num_session_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.common_tokens <= self.context:
            raise ConfigError(f"common_tokens {self.common_tokens} must be between 0 and the context of {self.context}")

    def group(self, name: str) -> tuple[LayerKV, ...]:
        """The layers on one side of the cut."""
        cut = max(0, len(self.model.layers) - self.num_session_layers)
        return self.model.layers[:cut] if name == SHARED else self.model.layers[cut:]

    @property
    def bytes_per_token(self) -> int:
        return self.model.token_bytes(self.kv_dtype)

    @property
    def logical_bytes(self) -> int:
        """``sum over layers of min(context, window) * elements * bytes`` of one sequence."""
        return sum(layer.num_kept(self.context) * self._token_bytes(layer) for layer in self.model.layers)

    @property
    def allocated_bytes(self) -> int:
        """The same in whole blocks."""
        return sum(self._num_blocks(layer) * self._block_bytes(layer) for layer in self.model.layers)

    @property
    def unwindowed_bytes(self) -> int:
        """In whole blocks where windows free nothing: what this engine holds, since it keeps every token's blocks."""
        blocks = -(-self.context // self.block_size)
        return sum(blocks * self._block_bytes(layer) for layer in self.model.layers)

    @property
    def common_bytes(self) -> int:
        """Bytes that the cut lets all sessions hold once: whole common blocks of the shared layers."""
        return sum(self._num_common(layer) * self._block_bytes(layer) for layer in self.group(SHARED))

    def num_sessions(self, memory_bytes: int, with_cut: bool) -> int:
        """Sessions of this length that fit: ``common + n * (allocated - common + recurrent) <= memory``.

        Without the cut nothing is common, since the KV of every layer depends on the session's state. States
        (adapters) and weights are no part of this memory.
        """
        common = self.common_bytes if with_cut else 0
        each = self.allocated_bytes - common + self.model.recurrent_bytes
        return max(0, memory_bytes - common) // each if each else 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "kv_dtype": self.kv_dtype,
            "block_size": self.block_size,
            "context": self.context,
            "batch": self.batch,
            "common_tokens": self.common_tokens,
            "kv_bytes_per_token": {
                **{group: self.model.token_bytes(self.kv_dtype, self.group(group)) for group in GROUPS},
                "all": self.bytes_per_token,
            },
            "layers": {group: self.rows(group) for group in GROUPS},
            "sequence": {
                "kv_bytes": self.logical_bytes,
                "kv_bytes_allocated": self.allocated_bytes,
                "kv_rounding_bytes": self.allocated_bytes - self.logical_bytes,
                "kv_bytes_unwindowed": self.unwindowed_bytes,
                "kv_common_bytes": self.common_bytes,
                "recurrent_state_bytes": self.model.recurrent_bytes,
                "recurrent_dtype": self.model.recurrent_dtype,
                "conv_dtype": self.model.conv_dtype,
            },
            "batch_bytes": self.batch * (self.allocated_bytes + self.model.recurrent_bytes),
            "batch_bytes_with_cut": self.batch * (self.allocated_bytes - self.common_bytes + self.model.recurrent_bytes)
            + self.common_bytes,
        }

    def rows(self, group: str) -> list[dict[str, Any]]:
        """Layers of one side of the cut that keep the same, with what they keep of one sequence."""
        layers = self.group(group)
        return [
            {
                "kind": layer.kind,
                "num_layers": (count := layers.count(layer)),
                "window": layer.window,
                "kv_bytes_per_token": count * self._token_bytes(layer),
                "kv_bytes": count * layer.num_kept(self.context) * self._token_bytes(layer),
                "kv_bytes_allocated": count * self._num_blocks(layer) * self._block_bytes(layer),
                "recurrent_state_bytes": count * layer.recurrent_elements * element_bytes(self.model.recurrent_dtype),
                "conv_state_bytes": count * layer.conv_elements * element_bytes(self.model.conv_dtype),
            }
            for layer in dict.fromkeys(layers)
        ]

    def _token_bytes(self, layer: LayerKV) -> int:
        return layer.token_elements * element_bytes(self.kv_dtype)

    def _block_bytes(self, layer: LayerKV) -> int:
        return self.block_size * self._token_bytes(layer)

    def _num_blocks(self, layer: LayerKV) -> int:
        return -(-layer.num_kept(self.context) // self.block_size)

    def _num_common(self, layer: LayerKV) -> int:
        """Whole blocks of common tokens among those that the layer still keeps: its last ones."""
        gone = -(-self.context // self.block_size) - self._num_blocks(layer)
        return max(0, self.common_tokens // self.block_size - gone)
