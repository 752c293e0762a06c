"""The same state learned by a plain PEFT loop: transformers' model, peft's LoRA, every layer in every update."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

from pss_engine.models.source import ModelSource
from pss_engine.writer import WriterConfig

NAME = f"peft {importlib.metadata.version('peft')}"
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
OnStep = Callable[[str, float], None]
Factors = Mapping[tuple[int, str], Tensor]


def load(source: ModelSource) -> PreTrainedModel:
    """The model as transformers loads it, float32."""
    if source.kind == "gguf":
        return AutoModelForCausalLM.from_pretrained(source.path.parent, gguf_file=source.path.name, dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32)


def write(
    base: PreTrainedModel,
    layers: range,
    config: WriterConfig,
    chunks: Sequence[list[int]],
    prompt: list[int],
    positive: list[int],
    negative: list[int],
    initial_a: Factors,
    on_step: OnStep,
) -> dict[str, Tensor]:
    """``max(min_lm_steps, chunks)`` updates on the chunks in order, then ``readout_steps`` on the pair of clues.

    Args:
        layers: those that get factors.
        initial_a: [R, H_in] by (layer, module); lora_B starts at zero.
        on_step: called after every update with phase and loss; in ``readout`` the loss is l(z+).

    Returns:
        peft's state dict, bfloat16. ``base`` is left without adapters.
    """
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=int(config.alpha),
        target_modules=list(MODULES),
        layers_to_transform=list(layers),
        lora_dropout=0.0,
        bias="none",
    )
    model = get_peft_model(base, lora)
    _set_initial(model, initial_a)
    optimizer = _optimizer(model, config.lm_learning_rate)
    for step in range(max(config.min_lm_steps, len(chunks))):
        ids = torch.tensor([chunks[step % len(chunks)]])
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        _update(model, optimizer, loss, config.max_grad_norm)
        on_step("history", loss.item())
    optimizer = _optimizer(model, config.readout_learning_rate)
    targets = [target for target in (positive, negative) if target]
    for _ in range(config.readout_steps):
        losses = _target_losses(model, prompt, targets)
        loss = losses[0]
        if negative:
            loss = loss + F.relu(config.margin + losses[0] - losses[1])
        _update(model, optimizer, loss, config.max_grad_norm)
        on_step("readout", losses[0].item())
    factors = {name: tensor.bfloat16() for name, tensor in get_peft_model_state_dict(model).items()}
    model.unload()
    return factors


def _set_initial(model: PeftModel, initial_a: Factors) -> None:
    found: dict[tuple[int, str], Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            parts = name.split(".")
            weight = module.lora_A["default"].weight
            assert isinstance(weight, Tensor)
            found[int(parts[-3]), parts[-1]] = weight
    if found.keys() != initial_a.keys():
        raise ValueError(f"peft adapted {len(found)} modules, {len(initial_a)} were wanted")
    with torch.no_grad():
        for key, weight in found.items():
            weight.copy_(initial_a[key])


def _target_losses(model: PeftModel, prompt: list[int], targets: Sequence[list[int]]) -> Tensor:
    """Mean token loss of each target after the prompt, as one batch padded on the right; [number of targets]."""
    width = len(prompt) + max(len(target) for target in targets)
    ids = torch.zeros(len(targets), width, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, target in enumerate(targets):
        end = len(prompt) + len(target)
        ids[row, :end] = torch.tensor([*prompt, *target])
        mask[row, :end] = 1
        labels[row, len(prompt) : end] = torch.tensor(target)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
    return losses.sum(1) / (labels[:, 1:] != -100).sum(1)


def _optimizer(model: PeftModel, learning_rate: float) -> torch.optim.AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0)


def _update(model: PeftModel, optimizer: torch.optim.AdamW, loss: Tensor, max_grad_norm: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], max_grad_norm)
    optimizer.step()
