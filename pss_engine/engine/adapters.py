"""What the resident states add to a batch: each row its own, base rows nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pss_engine.metrics import EngineCounters
from pss_engine.models import ModelConfig
from pss_engine.ops.lora import lora_slices
from pss_engine.state import StateSlots


@dataclass(frozen=True)
class StateAdapters:
    """The serving :class:`~pss_engine.models.Adapters`; slot_ids [T] int32, -1 = base model."""

    slots: StateSlots
    slot_ids: Tensor
    config: ModelConfig
    counters: EngineCounters

    def __call__(self, layer: int, linear: str, x: Tensor, y: Tensor) -> Tensor:
        views = [(self.slots.view(layer, target.name), target.offset) for target in self.config.lora_targets_of[linear]]
        slices = [view.at(offset) for view, offset in views if view is not None]
        if slices:
            lora_slices(y, x, slices, self.slot_ids)
            self.counters.num_adapter_calls += len(slices)
        return y
