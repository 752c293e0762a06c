"""Errors of the engine. Every message names the value, the limit and the choices, in one line."""

from __future__ import annotations


class PSSError(Exception):
    """Base of every error that pss_engine raises on purpose."""


class ConfigError(PSSError, ValueError):
    """A setting, a file or a model that the engine cannot use as given."""


class BackendUnavailable(PSSError):
    """A named backend that cannot run here; the message says why."""


class CapacityError(PSSError):
    """A memory that is too small for what was asked of it.

    Attributes:
        owner: the memory that refused (``"kv blocks"``, ``"state slots"``, ...).
        needed: units asked for.
        free: units that are free, in the same unit.
    """

    def __init__(self, owner: str, needed: int, free: int, unit: str = "") -> None:
        self.owner, self.needed, self.free = owner, needed, free
        unit = f" {unit}" if unit else ""
        super().__init__(f"{owner}: {needed}{unit} needed, {free}{unit} free")


class SessionNotFound(PSSError, KeyError):
    """A session without a stored state. It is never answered by the base model instead."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class StateFormatError(PSSError):
    """A state file that is damaged, unsupported, or made for something else."""


class RequestRejected(PSSError, ValueError):
    """A request that the engine refuses before it starts; other requests are untouched."""
