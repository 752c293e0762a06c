"""PEFT's adapter folder: ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pss_engine.errors import StateFormatError
from pss_engine.state.adapter_config import AdapterConfig
from pss_engine.state.file_source import FileSource
from pss_engine.state.files import to_json_bytes
from pss_engine.state.peft_config import ALL_LINEAR, PeftConfig, parse_peft_config
from pss_engine.state.shape import MODULE_PARENTS, StateShape, TargetKey, module_key
from pss_engine.state.tensor_file import TensorEntry, TensorFile
from pss_engine.state.tensor_names import PairEntry, pair_tensors, tensor_name

if TYPE_CHECKING:
    import torch

CONFIG_FILE = "adapter_config.json"
TENSOR_FILE = "adapter_model.safetensors"
_PICKLE_FILE = "adapter_model.bin"

Tensors = dict[TargetKey, "tuple[torch.Tensor, torch.Tensor]"]


def adapter_files(
    tensors: Mapping[TargetKey, tuple[torch.Tensor, torch.Tensor]], config: AdapterConfig, base_model: str | None
) -> dict[str, bytes]:
    """The two files of a PEFT adapter, by name, as bytes.

    Args:
        tensors: (layer, module) -> (A ``[r, in]``, B ``[out, r]``), in any dtype PEFT reads and on any device.
        config: ranks, alphas and targets; describes exactly these tensors.
        base_model: name or path of the base model, None if unknown.
    """
    from safetensors.torch import save

    named = {
        tensor_name(layer, module, side): factor.detach().cpu().contiguous()
        for (layer, module), pair in tensors.items()
        for side, factor in zip("AB", pair, strict=True)
    }
    return {
        CONFIG_FILE: to_json_bytes(config.to_peft(base_model)),
        TENSOR_FILE: save(named, metadata={"format": "pt"}),
    }


def read_adapter(
    source: FileSource, shape: StateShape | None = None, max_rank: int | None = None
) -> tuple[Tensors, AdapterConfig, str | None]:
    """Read a PEFT LoRA adapter; what the header and the configuration tell is checked before the tensors are read.

    Args:
        source: the files of an adapter.
        shape: the model it must fit; None reads it without a model, and checks it against itself only.
        max_rank: largest rank allowed; None means any.

    Returns:
        (layer, module) -> (A ``[r, in]``, B ``[out, r]``) on the CPU in the file's dtype, the canonical configuration,
        and the base model's name as the file gives it.

    Raises:
        StateFormatError: a missing or damaged file, an unsupported feature, a tensor that does not fit, or a module
            that the configuration declares and the tensors lack: partial application is an error.
    """
    config_path, tensor_path = source.where(CONFIG_FILE), source.where(TENSOR_FILE)
    if not source.has(TENSOR_FILE) and source.has(_PICKLE_FILE):
        raise StateFormatError(f"{source.where(_PICKLE_FILE)}: a pickle, which is never loaded; save as {TENSOR_FILE}")
    peft = parse_peft_config(source.json(CONFIG_FILE), config_path)
    with TensorFile(tensor_path, file=source.open(TENSOR_FILE)) as file:
        _refuse_saved_modules(peft, file.entries, config_path)
        pairs, prefix = pair_tensors(file.entries, tensor_path)
        if shape is not None:
            for key, pair in pairs.items():
                shape.check_factors(f"{tensor_path}: {pair.a_name}", key, pair.a.shape, pair.b.shape)
        _check_declared(peft, pairs, prefix, shape, config_path)
        config = _canonical(peft, pairs, prefix, max_rank, tensor_path)
        loaded = file.load()
    tensors = {key: (loaded[pair.a_name], loaded[pair.b_name]) for key, pair in pairs.items()}
    return tensors, config, peft.base_model


def _refuse_saved_modules(peft: PeftConfig, entries: Mapping[str, TensorEntry], path: str) -> None:
    """``modules_to_save`` replaces whole modules of the base model: say which tensors, and how large they are."""
    if not peft.modules_to_save:
        return
    found = [
        f"{name} ({entry.num_bytes} bytes)"
        for name, entry in entries.items()
        if any(module in name.split(".") for module in peft.modules_to_save)
    ]
    raise StateFormatError(
        f"{path}: modules_to_save is {list(peft.modules_to_save)}, fully trained modules are not supported; "
        f"tensors: {', '.join(found[:4]) or 'none in the file'}"
    )


def _check_declared(
    peft: PeftConfig, pairs: Mapping[TargetKey, PairEntry], prefix: str, shape: StateShape | None, path: str
) -> None:
    """Tensors and declaration must agree in both directions."""
    for key, pair in pairs.items():
        if not peft.declares(module_key(*key, prefix)):
            raise StateFormatError(f"{path}: does not declare the module of tensor {pair.a_name}")
    candidates = _candidates(peft, pairs, shape)
    declared = [key for key in candidates if peft.declares(module_key(*key, prefix))]
    missing = [module_key(*key, prefix) for key in declared if key not in pairs]
    if missing:
        raise StateFormatError(
            f"{path}: declares {len(declared)} modules, {len(missing)} have no tensors: {', '.join(missing[:3])}"
        )
    if isinstance(peft.target_modules, tuple) and peft.target_modules != (ALL_LINEAR,):
        keys = [module_key(*key, prefix) for key in declared]
        for name in peft.target_modules:
            if not any(key == name or key.endswith(f".{name}") for key in keys):
                choices = ", ".join(shape.targets if shape else sorted({module for _, module in pairs}))
                raise StateFormatError(
                    f"{path}: target_modules entry {name!r:.80} matches no module; choices: {choices}"
                )
    unknown_layers = sorted((peft.layers or set()) - {layer for layer, _ in pairs})
    if unknown_layers:
        raise StateFormatError(f"{path}: layers_to_transform names layer {unknown_layers[0]}, which has no tensors")


def _candidates(peft: PeftConfig, pairs: Mapping[TargetKey, PairEntry], shape: StateShape | None) -> list[TargetKey]:
    """All modules that the declaration could mean: the model's, or without a model those the file speaks of."""
    if shape is not None:
        return [(layer, module) for layer in range(shape.num_layers) for module in shape.targets]
    modules = {module for _, module in pairs}
    if isinstance(peft.target_modules, tuple):
        modules |= {name.rsplit(".", 1)[-1] for name in peft.target_modules} & set(MODULE_PARENTS)
    layers = {layer for layer, _ in pairs} if peft.layers is not None else range(max(layer for layer, _ in pairs) + 1)
    return [(layer, module) for layer in sorted(layers) for module in sorted(modules)]


def _canonical(
    peft: PeftConfig, pairs: Mapping[TargetKey, PairEntry], prefix: str, max_rank: int | None, path: str
) -> AdapterConfig:
    ranks, alphas = {}, {}
    for key, pair in pairs.items():
        name = module_key(*key, prefix)
        rank = pair.a.shape[0]
        if rank != peft.rank(name):
            raise StateFormatError(f"{path}: {pair.a_name} has rank {rank}, the configuration says {peft.rank(name)}")
        if max_rank is not None and rank > max_rank:
            raise StateFormatError(f"{path}: {pair.a_name}: rank {rank} is over max_rank {max_rank}")
        ranks[key], alphas[key] = rank, peft.alpha(name)
    return AdapterConfig.from_targets(ranks, alphas, peft.use_rslora)
