"""Bytes of KV: what one token and one block of a layer group weigh."""

from __future__ import annotations

from dataclasses import dataclass

from pss_engine.errors import ConfigError

SHARED, SESSION = "shared", "session"
GROUPS = (SHARED, SESSION)
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8": 1, "int8": 1}


def element_bytes(dtype: str) -> int:
    """Bytes of one element; ``torch.`` before the name is ignored. Raises ConfigError for an unknown name."""
    name = dtype.removeprefix("torch.")
    if name not in ELEMENT_BYTES:
        raise ConfigError(f"dtype {dtype!r} is unknown; choices: {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[name]


@dataclass(frozen=True)
class KVGeometry:
    """``bytes per token = 2 (k and v) * layers * kv heads * head dim * element bytes`` of a group.

    Attributes:
        num_layers: layers by group; the groups are the two sides of the cut.
        block_size: tokens in a block.
        hidden_bytes: of the hidden state of a token at the cut, kept with the blocks of the shared layers.
        dtype: name of the elements' type, for reports.
        recurrent_bytes: of the recurrent and convolution states of one sequence, which do not grow.
    """

    num_layers: dict[str, int]
    num_kv_heads: int
    head_dim: int
    element_bytes: int
    block_size: int
    hidden_bytes: int = 0
    dtype: str = ""
    recurrent_bytes: int = 0

    def token_bytes(self, group: str) -> int:
        return 2 * self.num_layers[group] * self.num_kv_heads * self.head_dim * self.element_bytes

    def block_bytes(self, group: str) -> int:
        return self.block_size * self.token_bytes(group)

    def held_bytes(self, num_tokens: int) -> int:
        """Bytes of the whole blocks that ``num_tokens`` tokens need over all layers."""
        return -(-num_tokens // self.block_size) * self.block_size * self.bytes_per_token

    @property
    def hidden_block_bytes(self) -> int:
        """Bytes of the hidden states at the cut of one block: no KV, but memory all the same."""
        return self.block_size * self.hidden_bytes

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers."""
        return sum(self.token_bytes(group) for group in GROUPS)
