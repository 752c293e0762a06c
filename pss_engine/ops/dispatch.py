"""The only place that chooses an implementation of an op: by device and by what imports, never by shapes."""

from __future__ import annotations

import importlib
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pss_engine.errors import BackendUnavailable, ConfigError

_log = logging.getLogger(__name__)

REFERENCE = "torch"


@dataclass(frozen=True)
class Impl:
    """A backend of an op.

    Attributes:
        backend: ``cpp``, ``triton``, ``cuda``, or the library that it is.
        target: ``"module:function"`` with the signature of the reference, imported at the first use.
        devices: device types it takes, as in ``torch.device.type``.
    """

    backend: str
    target: str
    devices: tuple[str, ...]


class Op:
    """An op: a contract, its torch reference, and faster backends in order of preference.

    ``op(...)`` takes the first backend that runs on the device of the first argument; the reference is the last.
    The choice is made once for each device. A preferred backend that cannot run is logged once as a warning.

    Args:
        name: the op's name, the same in every backend.
        reference: the specification, on every device. Its docstring is the op's.
        impls: backends, the preferred one first.
        check: called with the arguments before every backend; raises ``ConfigError`` for those outside the contract.

    Attributes:
        calls: calls so far, by backend.
        check: as above.
    """

    def __init__(self, name: str, reference: Callable[..., Any], *impls: Impl, check: Callable[..., None]) -> None:
        self.name, self.__doc__ = name, reference.__doc__
        self.calls: Counter[str] = Counter()
        self.check = check
        self._impls = {impl.backend: impl for impl in impls}
        self._loaded: dict[str, Callable[..., Any]] = {REFERENCE: reference}
        self._failed: dict[str, str] = {}
        self._chosen: dict[str, str] = {}

    def __call__(self, *args: Any, backend: str | None = None) -> Any:
        """Runs the op; with ``backend``, on that one or not at all.

        Raises:
            BackendUnavailable: the named backend cannot run here.
            ConfigError: arguments outside the contract.
        """
        device = args[0].device.type
        if backend is None:
            backend = self._chosen.get(device) or self._choose(device)
        elif reason := self._reason(backend, device, named=True):
            raise BackendUnavailable(f"{self.name}: backend {backend!r} cannot run on {device}: {reason}")
        self.check(*args)
        self.calls[backend] += 1
        return self._loaded[backend](*args)

    def using(self, backend: str) -> Callable[..., Any]:
        """The op bound to one backend."""
        return partial(self, backend=backend)

    def backends(self, device: str) -> list[str]:
        """Backends that run on tensors of this device type, the preferred one first."""
        return [backend for backend, reason in self.why(device).items() if not reason]

    def why(self, device: str) -> dict[str, str]:
        """Why each backend does not run on this device type; an empty text if it does. In order of preference."""
        return {backend: self._reason(backend, device) for backend in [*self._impls, REFERENCE]}

    def _choose(self, device: str) -> str:
        reasons = self.why(device)
        for backend, reason in reasons.items():
            if not reason:
                self._chosen[device] = backend
                return backend
            if device in self._impls.get(backend, Impl("", "", ())).devices:
                _log.warning("%s: the %s backend cannot run on %s: %s", self.name, backend, device, reason)
        raise BackendUnavailable(f"{self.name}: no backend runs on {device}: {reasons}")

    def _reason(self, backend: str, device: str, named: bool = False) -> str:
        if device == "cuda" and not torch.cuda.is_available():
            return "torch sees no CUDA device"
        if backend == REFERENCE:
            return ""
        if backend not in self._impls:
            return f"unknown; choices: {', '.join([*self._impls, REFERENCE])}"
        devices = self._impls[backend].devices
        # Triton's interpreter computes on the CPU, slowly: only for who asks for it by name.
        interpreted = named and backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
        if device not in devices and not interpreted:
            return f"made for {', '.join(devices)}"
        return self._load(backend)

    def _load(self, backend: str) -> str:
        """Imports the backend once; the reason if that fails."""
        if backend not in self._loaded and backend not in self._failed:
            module, _, function = self._impls[backend].target.partition(":")
            try:
                self._loaded[backend] = getattr(importlib.import_module(module), function)
            except ConfigError:
                raise
            except Exception as error:  # a broken build or a third-party package at import: any kind of error
                kind = "" if isinstance(error, BackendUnavailable) else f"{type(error).__name__}: "
                self._failed[backend] = kind + " ".join(str(error).split())
        return self._failed.get(backend, "")


def training_op(name: str, reference: Callable[..., Any], check: Callable[..., None]) -> Op:
    """An op that only training asks for: beside its reference C++ on the CPU."""
    return Op(name, reference, Impl("cpp", f"pss_engine.ops.cpp_training:{name}", devices=("cpu",)), check=check)
