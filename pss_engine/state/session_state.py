"""SessionState: the learned memory of one session, as low-rank factors on the last layers of a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from pss_engine.errors import ConfigError, StateFormatError
from pss_engine.state.adapter_config import AdapterConfig
from pss_engine.state.files import check_session_id
from pss_engine.state.meta import StateMeta
from pss_engine.state.peft_format import Tensors
from pss_engine.state.shape import MODULE_PARENTS, StateShape, TargetKey
from pss_engine.state.tensor_names import tensor_name
from pss_engine.state.verify import verify

STATE_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True, eq=False)
class LoraFactors:
    """One adapted linear layer: ``y += scaling * (x A^T) B^T``.

    Attributes:
        a: ``[r, in_features]``, float32, bfloat16 or float16.
        b: ``[out_features, r]``, as ``a``.
        scaling: alpha / r, or alpha / sqrt(r) with rank-stabilised LoRA.
    """

    a: torch.Tensor
    b: torch.Tensor
    scaling: float

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])


@dataclass(frozen=True, eq=False)
class SessionState:
    """A session's state. Immutable: its tensors must not be written to once it exists, because its digest names them.

    Attributes:
        session_id: whose state it is; not part of the digest.
        factors: (layer, module) -> factors; at least one.
        config: ranks, alphas and targets in one spelling; agrees with ``factors``.
        meta: where it comes from.

    Raises:
        ConfigError: a session id that cannot name a folder.
        StateFormatError: no factors, or factors that contradict each other or ``config``.
    """

    session_id: str
    factors: Mapping[TargetKey, LoraFactors]
    config: AdapterConfig
    meta: StateMeta = field(default_factory=StateMeta)

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        if not self.factors:
            raise StateFormatError(f"state {self.session_id}: has no factors, at least one is needed")
        for (layer, module), pair in self.factors.items():
            where = f"state {self.session_id}: layer {layer} {module}"
            if module not in MODULE_PARENTS or layer < 0:
                raise StateFormatError(
                    f"{where}: no such module; choices: {', '.join(MODULE_PARENTS)} in layers from 0"
                )
            if pair.a.ndim != 2 or pair.b.ndim != 2 or pair.a.shape[0] != pair.b.shape[1] or pair.rank < 1:
                raise StateFormatError(
                    f"{where}: A {list(pair.a.shape)} and B {list(pair.b.shape)}: [r, in] and [out, r] needed"
                )
            if pair.a.dtype not in STATE_DTYPES or pair.b.dtype not in STATE_DTYPES:
                raise StateFormatError(
                    f"{where}: {pair.a.dtype} and {pair.b.dtype}; choices: {', '.join(STATE_DTYPES.values())}"
                )
            if pair.rank != self.config.rank(layer, module) or pair.scaling != self.config.scaling(layer, module):
                raise StateFormatError(
                    f"{where}: rank {pair.rank} and scaling {pair.scaling}, the configuration says "
                    f"{self.config.rank(layer, module)} and {self.config.scaling(layer, module)}"
                )

    @classmethod
    def from_tensors(
        cls,
        session_id: str,
        tensors: Mapping[TargetKey, tuple[torch.Tensor, torch.Tensor]],
        alpha: float | Mapping[TargetKey, float],
        use_rslora: bool = False,
        meta: StateMeta | None = None,
    ) -> SessionState:
        """A state from (layer, module) -> (A ``[r, in]``, B ``[out, r]``); ``alpha`` is one number or one per pair."""
        alphas = alpha if isinstance(alpha, Mapping) else dict.fromkeys(tensors, float(alpha))
        if not tensors or set(alphas) != set(tensors):
            raise ConfigError(
                f"state {session_id}: {len(tensors)} pairs and {len(alphas)} alphas: one of each per module needed"
            )
        for key, (a, b) in tensors.items():
            if a.ndim != 2 or b.ndim != 2:
                raise StateFormatError(
                    f"state {session_id}: {key}: A {list(a.shape)} and B {list(b.shape)} must be matrices"
                )
        config = AdapterConfig.from_targets(
            {key: int(a.shape[0]) for key, (a, _) in tensors.items()}, alphas, use_rslora
        )
        return cls.from_config(session_id, dict(tensors), config, meta or StateMeta())

    @classmethod
    def from_config(cls, session_id: str, tensors: Tensors, config: AdapterConfig, meta: StateMeta) -> SessionState:
        """A state from tensors and the configuration that describes them; factors in (layer, module) order."""
        factors = {key: LoraFactors(*tensors[key], config.scaling(*key)) for key in sorted(tensors)}
        return cls(session_id, factors, config, meta)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of what decides the output: configuration, tensors, readout and the fingerprints it is for."""
        head = {
            "config": self.config.to_json(),
            "readout": self.meta.readout,
            "readout_token_ids": list(self.meta.readout_token_ids),
            "model_fingerprint": self.meta.model_fingerprint,
            "tokenizer_fingerprint": self.meta.tokenizer_fingerprint,
        }
        sha = hashlib.sha256(_line(head))
        for (layer, module), pair in sorted(self.factors.items()):
            for side, tensor in (("A", pair.a), ("B", pair.b)):
                sha.update(_line([tensor_name(layer, module, side), STATE_DTYPES[tensor.dtype], list(tensor.shape)]))
                sha.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return sha.hexdigest()

    @property
    def num_bytes(self) -> int:
        """Bytes of all factors."""
        return sum(t.numel() * t.element_size() for pair in self.factors.values() for t in (pair.a, pair.b))

    @property
    def layers(self) -> tuple[int, ...]:
        """Touched layers, ascending."""
        return self.config.layers_to_transform

    @property
    def modules(self) -> tuple[str, ...]:
        """Touched module names, sorted."""
        return tuple(sorted({module for _, module in self.factors}))

    @property
    def max_rank(self) -> int:
        """Largest rank of any pair."""
        return max(pair.rank for pair in self.factors.values())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Safetensors names of the dtypes in use, sorted."""
        return tuple(sorted({STATE_DTYPES[t.dtype] for pair in self.factors.values() for t in (pair.a, pair.b)}))

    def tensors(self) -> Tensors:
        """(layer, module) -> (A, B), as the file formats take them."""
        return {key: (pair.a, pair.b) for key, pair in self.factors.items()}

    def for_session(self, session_id: str) -> SessionState:
        """The same state under another session's id."""
        return replace(self, session_id=session_id)

    def check(
        self,
        *,
        shape: StateShape | None = None,
        max_rank: int | None = None,
        max_bytes: int | None = None,
        dtype: torch.dtype | None = None,
        model_fingerprint: str | None = None,
        tokenizer_fingerprint: str | None = None,
    ) -> None:
        """Raise unless the state is sound and fits; see :func:`pss_engine.state.verify.verify`."""
        verify(
            self,
            shape=shape,
            max_rank=max_rank,
            max_bytes=max_bytes,
            dtype=dtype,
            model_fingerprint=model_fingerprint,
            tokenizer_fingerprint=tokenizer_fingerprint,
        )

    def describe(self) -> dict[str, Any]:
        """Facts about the state as JSON values, for ``pss inspect`` and ``pss_state.json``."""
        return {
            "session_id": self.session_id,
            "digest": self.digest,
            "num_bytes": self.num_bytes,
            "num_tensors": 2 * len(self.factors),
            "dtypes": list(self.dtypes),
            "max_rank": self.max_rank,
            "layers": list(self.layers),
            "modules": list(self.modules),
            "meta": self.meta.to_json(),
        }


def _line(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, allow_nan=False).encode("utf-8") + b"\n"
