from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@pytest.fixture
def file_size_limit():
    """Let no file of this process grow beyond so many bytes: a disk that is full in the middle of a write."""

    # a block, not the whole test: the runner's own output may go to a file
    @contextmanager
    def limit(num_bytes: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit
