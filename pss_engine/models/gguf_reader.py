"""The gguf package's reader, in less time, and saying of a file cut short that it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGUFReader as _GGUFReader


class GGUFReader(_GGUFReader):
    """Reads a GGUF file.

    Raises:
        ValueError: the file ends before what its own header promises; or what gguf raises on a damaged one.
    """

    @property
    def data(self) -> Any:
        """The file's bytes as a plain array: a vocabulary is some 200,000 slices, and those of a memmap are slow."""
        return self._data

    @data.setter
    def data(self, mapped: Any) -> None:
        self._data = np.asarray(mapped)

    def _get(self, offset: int, dtype: Any, count: int = 1, *args: Any, **kwargs: Any) -> Any:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > self._data.size:  # a slice would be short without a word, and its shape the first to tell
            raise ValueError(f"it is cut short: {self._data.size} bytes, and its header tells of at least {end}")
        return super()._get(offset, dtype, count, *args, **kwargs)
