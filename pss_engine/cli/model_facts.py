"""What a model's config says about memory; weights are read for the fingerprint only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pss_engine.errors import ConfigError

if TYPE_CHECKING:
    from pss_engine.kv import KVGeometry
    from pss_engine.models import ModelConfig

STATE_ELEMENT_BYTES = 2
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class ModelFacts:
    """A model's geometry and the bytes that follow from it.

    Attributes:
        kind, path: what was found under the name (``hf`` or ``gguf``), and where.
        dtype: of the KV cache that ``geometry`` counts.
        state_bytes: of a state of ``rank`` on every target of the session layers, in bfloat16.
        fingerprint: of the weights; empty where they were not read.
    """

    name: str
    kind: str
    path: str
    config: ModelConfig
    geometry: KVGeometry
    dtype: str
    rank: int
    state_bytes: int
    fingerprint: str

    def to_dict(self) -> dict[str, Any]:
        groups = self.geometry.num_layers
        return {
            "model": self.name,
            "kind": self.kind,
            "path": self.path,
            "config": asdict(self.config),
            "cut": {"shared_layers": groups["shared"], "session_layers": groups["session"]},
            "lora_targets": {name: list(shape) for name, shape in self.config.lora_shapes.items()},
            "kv_dtype": self.dtype,
            "kv_bytes_per_token": {
                **{g: self.geometry.token_bytes(g) for g in groups},
                "all": self.geometry.bytes_per_token,
            },
            "rank": self.rank,
            "state_bytes": self.state_bytes,
            "fingerprint": self.fingerprint or None,
        }

    def rows(self) -> list[tuple[str, object]]:
        from pss_engine.cli.output import mib

        config, groups = self.config, self.geometry.num_layers
        shared, session = (self.geometry.token_bytes(group) for group in ("shared", "session"))
        targets = ", ".join(f"{name} {t.in_features}->{t.out_features}" for name, t in config.lora_targets.items())
        return [
            ("model", f"{self.name} ({self.kind}, {config.family})"),
            ("path", self.path),
            ("layers", f"{config.num_layers}: {groups['shared']} shared, {groups['session']} session"),
            ("heads", f"{config.num_heads} query, {config.num_kv_heads} kv, of {config.head_dim}"),
            ("hidden", f"{config.hidden_size}, in the MLP {config.intermediate_size}"),
            ("vocabulary", config.vocab_size),
            ("context", f"{config.max_context} tokens"),
            ("lora targets", targets),
            ("KV per token", f"{shared + session} bytes ({self.dtype}): {shared} shared, {session} session"),
            ("KV full", f"{mib(config.max_context * (shared + session))} for the whole context"),
            ("state", f"{mib(self.state_bytes)} at rank {self.rank}"),
            ("fingerprint", self.fingerprint or "not read (--fingerprint loads the weights)"),
        ]


def model_facts(name: str, rank: int, num_session_layers: int, dtype: str, with_fingerprint: bool) -> ModelFacts:
    """Find the model and read its config.

    Raises:
        ConfigError: no such model, a damaged or unsupported one, or a number out of range.
    """
    from pss_engine.kv import SESSION, SHARED, KVGeometry
    from pss_engine.models import ModelConfig
    from pss_engine.models.checkpoint import SafetensorsCheckpoint
    from pss_engine.models.gguf import GGUFCheckpoint
    from pss_engine.models.loader import DTYPES, load_model
    from pss_engine.models.source import resolve

    if rank < 1 or num_session_layers < 1:
        raise ConfigError(f"rank {rank} and num_session_layers {num_session_layers} must be at least 1")
    source = resolve(name)
    checkpoint = GGUFCheckpoint(source.path) if source.kind == "gguf" else SafetensorsCheckpoint(source.path)
    config = ModelConfig.from_hf(checkpoint.config())
    num_session = min(num_session_layers, config.num_layers)
    kind = "float32" if dtype == "auto" else dtype
    geometry = KVGeometry(
        num_layers={SHARED: config.num_layers - num_session, SESSION: num_session},
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        element_bytes=DTYPES[kind].itemsize,
        block_size=BLOCK_TOKENS,
    )
    per_layer = sum(rank * (t.in_features + t.out_features) for t in config.lora_targets.values())
    state_bytes = num_session * per_layer * STATE_ELEMENT_BYTES
    fingerprint = load_model(name, device="cpu").fingerprint if with_fingerprint else ""
    return ModelFacts(name, source.kind, str(source.path), config, geometry, kind, rank, state_bytes, fingerprint)
