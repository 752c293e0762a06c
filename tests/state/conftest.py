from __future__ import annotations

import resource

import pytest


@pytest.fixture
def file_size_limit():
    """Let no file of this process grow beyond so many bytes: a disk that is full in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
