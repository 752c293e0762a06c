"""One view of a model's files: a config, named tensors in Hugging Face's naming, a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.quantized import QuantizedWeight

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


class Checkpoint(Protocol):
    """Files of one model."""

    path: Path

    def config(self) -> PretrainedConfig:
        """The model's config as transformers knows it."""

    def names(self) -> set[str]:
        """Names of the tensors, in Hugging Face's naming."""

    def tensor(self, name: str) -> Tensor | QuantizedWeight:
        """One tensor as stored, on the CPU. Raises KeyError where absent."""

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model."""


class SafetensorsCheckpoint:
    """A Hugging Face folder: ``config.json`` and one or several ``.safetensors`` files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        index = path / "model.safetensors.index.json"
        if index.is_file():
            self._files: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
        else:
            self._files = {name: "model.safetensors" for name in self._keys(path / "model.safetensors")}

    def config(self) -> PretrainedConfig:
        from transformers import AutoConfig

        with readable(self.path / "config.json"):
            return AutoConfig.from_pretrained(self.path, trust_remote_code=False)

    def names(self) -> set[str]:
        return set(self._files)

    def tensor(self, name: str) -> Tensor:
        from safetensors import safe_open

        file = self.path / self._files[name]
        with readable(file), safe_open(file, framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
            return tensor

    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        with readable(self.path):
            return AutoTokenizer.from_pretrained(self.path, trust_remote_code=False)

    def _keys(self, file: Path) -> list[str]:
        from safetensors import safe_open

        if not file.is_file():
            raise ConfigError(
                f"model folder {str(self.path)!r} has no model.safetensors (pickled weights are not read)"
            )
        with readable(file), safe_open(file, framework="pt") as tensors:
            return list(tensors.keys())


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn whatever a reader raises on a damaged file into one line that names the file."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # readers raise SafetensorError, ValueError, OSError, struct.error, ...
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"model file {str(path)!r} cannot be read: {reason}") from error
