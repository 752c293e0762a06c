"""Settings of the engine. One frozen object, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pss_engine.errors import ConfigError

MIB = 1024 * 1024
CHOICES = {
    "state_dtype": ("auto", "float32", "bfloat16", "float16", "int8"),
    "kv_cache_dtype": ("auto", "float32", "bfloat16", "float16", "float8_e4m3fn"),
    "activations": ("auto", "float32", "int8"),
}
MAY_BE_ZERO = ("max_context", "max_overtakes", "max_draft_tokens", "audit_steps")


@dataclass(frozen=True)
class EngineConfig:
    """Limits of one engine.

    Attributes:
        kv_cache_bytes: memory for keys and values, shared by all requests.
        kv_cache_dtype: how keys and values are kept: ``auto`` (the model's), ``float32``, ``bfloat16``, ``float16``; on
            CUDA ``float8_e4m3fn`` too. Half of the bytes hold twice the tokens; attention computes in float32.
        block_size: tokens in a KV block.
        max_num_seqs: requests that decode together.
        max_batched_tokens: tokens of one forward; longer prompts are prefilled in chunks.
        max_context: tokens of one request, prompt and output; 0 = what the model allows.
        max_queued: requests that may wait; one more is refused.
        num_state_slots: states that are resident at once.
        max_rank: largest rank of a state.
        max_overtakes: requests with a state that may pass one whose state is not ready; then they wait for it.
        prefix_caching: keep blocks of finished requests for those that begin with the same tokens.
        max_draft_tokens: tokens verified in one step beyond the next, where a state has a readout; 0 = off.
        cuda_graphs: on CUDA, capture decode steps when the engine is made, then only replay them; reserves a KV block.
        fused_layers: on the CPU, run the layers of a step in one call; off: op by op, with the same bits.
        activations: what rows are taken in before quantised weights: ``float32`` gives the bits of the dequantised
            weights; ``int8`` is faster, in groups of 32 features with exact dot products; ``auto``: int8.
        audit_steps: every so many steps the KV books are proved; what is wrong is logged and dumped; 0 = never.
        audit_folder: where dumps go; empty = the system's folder for temporary files.
        kv_timeline: file that the bytes of every call are written to as they change (JSONL); empty = none.
        state_dtype: how resident factors are kept: ``float32``, ``bfloat16``, ``float16``, on the CPU ``int8`` (whole
            numbers of a step of their own for each factor), or ``auto`` (the model's).
    """

    kv_cache_bytes: int = 512 * MIB
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    max_num_seqs: int = 32
    max_batched_tokens: int = 512
    max_context: int = 0
    max_queued: int = 1024
    num_state_slots: int = 8
    max_rank: int = 64
    max_overtakes: int = 64
    prefix_caching: bool = True
    max_draft_tokens: int = 8
    cuda_graphs: bool = True
    fused_layers: bool = True
    activations: str = "auto"
    audit_steps: int = 256
    audit_folder: str = ""
    kv_timeline: str = ""
    state_dtype: str = "auto"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in MAY_BE_ZERO else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise ConfigError(f"{field.name} is {value}; it must be at least {least}")
        if self.max_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_batched_tokens {self.max_batched_tokens} is less than max_num_seqs {self.max_num_seqs}:"
                " every running request needs one token a step"
            )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} {getattr(self, name)!r} is unknown; choices: {', '.join(choices)}")
