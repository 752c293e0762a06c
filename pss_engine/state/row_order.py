"""The order between the kernels that read a row and the loader that writes the next state into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pss_engine.ops.device import is_integrated


def shares_host_memory(device: torch.device) -> bool:
    """Whether the device computes on host memory: the CPU, and GPUs that their driver calls integrated."""
    if device.type == "cpu":
        return True
    return is_integrated(device)


class RowOrder:
    """Writes begin when the kernels launched before them are done, and are over before a row is called ready.

    Args:
        device: that reads the rows.
        by_host: the host writes them; otherwise a stream of the device's own does.
    """

    def __init__(self, device: torch.device, by_host: bool) -> None:
        self._device = device if device.type == "cuda" else None
        self._stream = None if by_host or self._device is None else torch.cuda.Stream(self._device)

    def mark(self) -> torch.cuda.Event | None:
        """What the current stream has been given until now; taken where the kernels are launched."""
        return None if self._device is None else self._event(torch.cuda.current_stream(self._device))

    @contextmanager
    def after(self, mark: torch.cuda.Event | None) -> Iterator[None]:
        """Write rows in the body: nothing of it happens before the mark has passed, all of it has at the end."""
        if mark is None or self._stream is None:
            if mark is not None:
                mark.synchronize()
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(mark)
            yield
            self._event(self._stream).synchronize()

    def _event(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        return event
