"""Where the weights of linear layers lie: in one piece of memory, packed for the CPU kernels, or plain."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.models.config import ModelConfig
from pss_engine.ops.linear import PackedWeight, linear

HUGE_PAGE = 2 * 1024 * 1024


class WeightPacker:
    """Packs the weights of a model one after another, without holding any of them twice.

    They share one piece of memory on huge pages, where the system gives these: a decoding step reads all of it once,
    and with small pages a good part of the time goes into looking them up. Weights that the CPU kernels do not take
    stay as they are: on other devices, without the extension, and narrow ones, which would be computed in float32 so
    that the activations were not of the model's dtype.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._packs = device.type == "cpu" and dtype == torch.float32 and "cpp" in linear.backends("cpu")
        self._memory = torch.empty(0)
        if self._packs:
            shapes = [
                (sum(target.out_features for target in targets), targets[0].in_features)
                for targets in config.lora_targets_of.values()
            ]
            layers = config.num_layers * sum(PackedWeight.num_elements(*shape) for shape in shapes)
            self._memory = _huge(layers + PackedWeight.num_elements(config.vocab_size, config.hidden_size))

    def __call__(self, weight: Tensor) -> Tensor | PackedWeight:
        if not self._packs:
            return weight
        size = PackedWeight.num_elements(*weight.shape)
        memory, self._memory = self._memory[:size], self._memory[size:]
        return PackedWeight.pack(weight, memory)

    def finish(self) -> None:
        """Give what loading has used and freed back to the system: it is a good part of a small model's size."""
        if self._packs:
            from pss_engine.ops.cpp import release_free_memory

            release_free_memory()


def _huge(num_elements: int) -> Tensor:
    """Uninitialised float32 elements that begin at a huge page."""
    from pss_engine.ops.cpp import advise_huge_pages

    block = torch.empty(num_elements + HUGE_PAGE // 4)
    first = -block.data_ptr() % HUGE_PAGE // 4
    memory = block[first : first + num_elements]
    advise_huge_pages(memory)
    return memory
