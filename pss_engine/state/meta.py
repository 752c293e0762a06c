"""What a state says of itself: ``pss_state.json`` beside the PEFT files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pss_engine.errors import StateFormatError

STATE_FILE = "pss_state.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class StateMeta:
    """Where a state comes from. None means unknown, as for an adapter that was not written here.

    Attributes:
        model_fingerprint, tokenizer_fingerprint: digests of the model and the tokenizer it was written with.
        base_model: name or path of that model.
        writer: the writer's configuration, JSON values.
        seed: the writer's seed.
        created_at: ISO 8601 time, UTC.
        num_history_tokens: length of the compiled history.
        readout: the text that the state emits for its training instruction; empty if not recorded.
        readout_token_ids: the same, as tokens.
        clue, negative_clue: the targets shown to the writer.
        targets: all that was shown, as JSON values, and ``source``: where it came from.
        write_digest: of all that the writer was given; the same input need not be written again.
        parent: digest of the state that this one goes on from.
        readout_check: how much of the clue the readout says: ``recall``, ``missed`` terms, ``passed``, ``attempts``.
        format_version: of ``pss_state.json``.
    """

    model_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    base_model: str | None = None
    writer: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    created_at: str | None = None
    num_history_tokens: int | None = None
    readout: str = ""
    readout_token_ids: tuple[int, ...] = ()
    clue: str | None = None
    negative_clue: str | None = None
    targets: Mapping[str, Any] = field(default_factory=dict)
    write_digest: str | None = None
    parent: str | None = None
    readout_check: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**asdict(self), "readout_token_ids": list(self.readout_token_ids)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], where: str) -> StateMeta:
        """Read the fields back; StateFormatError for a newer version, an unknown field or a value of the wrong kind."""
        version = raw.get("format_version")
        if version != FORMAT_VERSION:
            raise StateFormatError(f"{where}: format_version is {version!r:.20}, this release reads {FORMAT_VERSION}")
        kinds = {item.name: item.type for item in fields(cls)}
        for name, value in raw.items():
            if name not in kinds:
                raise StateFormatError(f"{where}: unknown field {name!r:.80}; choices: {', '.join(kinds)}")
            if not _fits(value, str(kinds[name])):
                raise StateFormatError(f"{where}: {name} is {value!r:.60}, {kinds[name]} is needed")
        values = dict(raw)
        values["readout_token_ids"] = tuple(raw.get("readout_token_ids", ()))
        return cls(**values)


def _fits(value: object, kind: str) -> bool:
    if value is None:
        return kind.endswith("| None")
    if kind.startswith("str"):
        return isinstance(value, str)
    if kind.startswith("int"):
        return type(value) is int
    if kind.startswith("tuple"):
        return isinstance(value, list) and all(type(item) is int for item in value)
    return isinstance(value, dict)
