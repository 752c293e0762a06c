"""An index on disk: ``NAME.json`` says of what it is, ``NAME.safetensors`` holds its arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pss_engine.durable import sync_folder, write_durably
from pss_engine.errors import ConfigError, StateFormatError
from pss_engine.retrieval.columns import Array, map_columns, save_columns
from pss_engine.state.files import disk_errors, read_json, to_json_bytes


class IndexFolder:
    """The index ``name`` in a folder; several indexes may share it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = Path(folder), name
        self._meta, self._arrays = self._folder / f"{name}.json", self._folder / f"{name}.safetensors"

    def write(self, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Replace the index; the description comes last, so that half an index is none."""
        with disk_errors(f"{self._name} index", self._folder, sum(array.nbytes for array in arrays.values())):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._meta.unlink(missing_ok=True)
            partial = self._arrays.with_suffix(".partial")
            save_columns(partial, arrays)
            os.replace(partial, self._arrays)
            write_durably(self._meta, [to_json_bytes(dict(meta))])
            sync_folder(self._folder)

    def check(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The description. Raises ConfigError where it is missing or differs from what is wanted."""
        try:
            meta = read_json(self._meta)
        except StateFormatError as error:
            raise ConfigError(f"{self._name} index {error}") from None
        for name, value in wanted.items():
            if meta.get(name) != value:
                raise ConfigError(
                    f"{self._name} index {self._folder} is of {name} {_short(meta.get(name))}, {_short(value)} is in"
                    " use; build it again"
                )
        return meta

    def arrays(self, names: Iterable[str]) -> dict[str, Array]:
        return map_columns(self._arrays, names)


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and len(value) == 64 else str(value)
