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
    checks += _guard_all("ops", lambda: _ops(place))
    checks += [
        _guard("models", _packages),
        _guard("model", lambda: _model(model)),
        _guard("store", lambda: _store(store)),
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

    threads = torch.get_num_threads()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if place != "cuda":
        unused = unused_gpu()
        return Check(
            "device",
            "note" if unused else "ok",
            f"cpu, {cpus} cores, {threads} OpenMP threads" + (f"; {unused}" if unused else ""),
            {"device": "cpu", "cores": cpus, "threads": threads, "unused_gpu": unused},
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
