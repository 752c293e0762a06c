"""The checks of ``pss doctor``. Each looks at one thing and cannot break the others."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pss_engine import __version__
from pss_engine.cli.gpu_checks import gpu_facts, gpu_line, unused_gpu
from pss_engine.errors import PSSError

NEEDED = ("torch", "transformers", "numpy", "safetensors", "gguf", "huggingface_hub", "rich", "cyclopts")
OPTIONAL = ("triton", "flash-attn", "peft")


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        status: ``ok``, ``note`` (the engine runs without it) or ``fail`` (it does not).
        data: the same for programs.
    """

    name: str
    status: str
    detail: str
    data: dict[str, Any] = field(default_factory=dict)


def examine(model: str, store: Path, device: str) -> list[Check]:
    """All checks, in the order in which one needs the other."""
    checks = [_system(), *map(_package, NEEDED), *map(_optional, OPTIONAL)]
    if any(check.status == "fail" for check in checks):
        return checks
    place = _device_type(device)
    checks += [_guard("device", lambda: _device(place)), _guard("extension", _extension)]
    checks += [_guard("threads", _threads), _guard("weights", lambda: _weights(place))]
    checks += _guard_all("ops", lambda: _ops(place))
    checks += [
        _guard("models", _packages),
        _guard("model", lambda: _model(model)),
        _guard("store", lambda: _store(store)),
        _guard("model cache", _cache),
    ]
    return checks


def _guard(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # a finding, whatever broke
        return Check(name, "fail", " ".join(f"{type(error).__name__}: {error}".split()))


def _guard_all(name: str, check: Callable[[], list[Check]]) -> list[Check]:
    try:
        return check()
    except Exception as error:
        return [Check(name, "fail", " ".join(f"{type(error).__name__}: {error}".split()))]


def _system() -> Check:
    versions = {"pss_engine": __version__, "python": platform.python_version(), "machine": platform.machine()}
    return Check(
        "pss", "ok", f"{__version__}, Python {versions['python']}, {platform.system()} {versions['machine']}", versions
    )


def _package(name: str) -> Check:
    try:
        version = importlib.metadata.version(name)
        importlib.import_module(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "fail", "not installed")
    except Exception as error:
        return Check(name, "fail", f"does not import: {type(error).__name__}: {error}".splitlines()[0])
    return Check(name, "ok", version, {"version": version})


def _optional(name: str) -> Check:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "note", "not installed (optional)")
    return Check(name, "ok", version, {"version": version})


def _device_type(device: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def _device(place: str) -> Check:
    import torch

    if place != "cuda":
        cores, unused = os.cpu_count(), unused_gpu()
        return Check(
            "device",
            "note" if unused else "ok",
            f"cpu, {cores} processors" + (f"; {unused}" if unused else ""),
            {"device": "cpu", "cores": cores, "unused_gpu": unused},
        )
    if not torch.cuda.is_available():
        return Check("device", "fail", "cuda was asked for, but torch sees no CUDA device")
    facts = gpu_facts()
    return Check("device", "ok", gpu_line(facts), facts)


def _extension() -> Check:
    from pss_engine.ops.extension import build_info, load_extension

    info = build_info()
    try:
        extension = load_extension()
    except PSSError as error:
        return Check("extension", "note", str(error), info)
    data = {**info, "isa": extension.isa(), "supported_isas": list(extension.supported_isas())}
    openmp = "OpenMP" if extension.with_openmp() else "one thread (no OpenMP)"
    cuda = f"CUDA {info.get('nvcc')} part for sm {','.join(info.get('cuda_archs', []))}"
    cuda = cuda if extension.with_cuda() else _no_cuda(info)
    return Check("extension", "ok", f"{data['isa']}, {openmp}, {cuda}", data)


def _threads() -> Check:
    import torch

    from pss_engine.ops.cpu_limit import cpu_limit
    from pss_engine.ops.threads import use_threads

    why, limit = use_threads(), cpu_limit()
    waiting = os.environ.get("OMP_WAIT_POLICY", "active").lower()
    data = {"threads": torch.get_num_threads(), "why": why, "waiting": waiting, **vars(limit)}
    return Check("threads", "ok", f"{data['threads']}: {why}; waiting is {waiting}", data)


def _weights(place: str) -> Check:
    """How weights are held and layers are run where dtype and device are not named otherwise."""
    import torch

    from pss_engine.models.packing import why_not_packed
    from pss_engine.ops.packed_weight import FORMATS

    dtype = torch.float32 if place == "cpu" else torch.bfloat16
    reason = why_not_packed(dtype, torch.device(place))
    data = {"packed": not reason, "fused_layers": not reason, "formats": list(FORMATS) if not reason else []}
    if reason:
        return Check("weights", "note", f"plain tensors, layers run op by op; not packed: {reason}", data)
    detail = (
        f"packed as {', '.join(FORMATS)}; the layers of a step run in one call;"
        " activations are int8 before quantised weights, else float32"
    )
    return Check("weights", "ok", detail, {**data, "activations": {"quantized": "int8", "float": "float32"}})


def _no_cuda(info: dict[str, Any]) -> str:
    return f"no CUDA part ({info.get('cuda_error') or 'not asked for'})"


def _ops(place: str) -> list[Check]:
    from pss_engine.ops import OPS

    checks = []
    for op in OPS:
        reasons = op.why(place)
        usable = [backend for backend, reason in reasons.items() if not reason]
        others = "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items() if reason)
        data = {
            "device": place,
            "backend": usable[0] if usable else None,
            "why_not": {b: r for b, r in reasons.items() if r},
        }
        detail = f"{usable[0] if usable else 'no backend'} on {place}" + (f" ({others})" if others else "")
        checks.append(Check(f"op {op.name}", "ok" if usable else "fail", detail, data))
    return checks


def _packages() -> Check:
    """Installed packages that carry a model; found by their file lists, never imported."""
    found = []
    for distribution in importlib.metadata.distributions():
        names = {file.name for file in distribution.files or []}
        if any(name.endswith(".gguf") for name in names) or {"config.json", "model.safetensors"} <= names:
            found.append(f"{distribution.metadata['Name']} {distribution.version}")
    detail = ", ".join(sorted(found)) or "no model package is installed; make demo fetches two"
    return Check("model packages", "ok" if found else "note", detail, {"packages": sorted(found)})


def _model(name: str) -> Check:
    from pss_engine.models.source import resolve

    if "/" in name and not Path(name).expanduser().exists():
        return Check("model", "note", f"{name}: a hub id; not looked up here", {"model": name})
    try:
        source = resolve(name)
    except PSSError as error:
        return Check("model", "note", str(error), {"model": name})
    return Check("model", "ok", f"{name}: {source.kind}, {source.path}", {"model": name, "path": str(source.path)})


def _store(folder: Path) -> Check:
    """Whether states can be written there; nothing is created."""
    root = folder.expanduser().absolute()
    existing = next(path for path in (root, *root.parents) if path.exists())
    data = {"store": str(root), "exists": root.exists()}
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Check("store", "note", f"{root}: cannot be written", data)
    return Check("store", "ok", f"{root}: {'writable' if root.exists() else 'can be made'}", data)


def _cache() -> Check:
    from pss_engine.models.cache import CacheFolder, cache_folder

    folder = CacheFolder(cache_folder())
    entries, limit = folder.entries(), folder.max_bytes()
    num_bytes = sum(entry.num_bytes for entry in entries)
    data = {"cache": str(folder.root), "num_models": len(entries), "num_bytes": num_bytes, "max_bytes": limit}
    detail = f"{folder.root}: {len(entries)} packed models, {num_bytes >> 20} MiB of at most {limit >> 20}"
    return Check("model cache", "ok", f"{detail} (pss cache list)", data)
