"""What ``import pss_engine`` offers. A name that comes, goes or moves must be changed here too."""

from __future__ import annotations

import pytest

import pss_engine

ERRORS = {
    "BackendUnavailable",
    "CapacityError",
    "ConfigError",
    "PSSError",
    "RequestRejected",
    "SessionNotFound",
    "StateFormatError",
}
HOMES = {
    "AsyncEngine": "engine",
    "Corpus": "retrieval",
    "Engine": "engine",
    "EngineConfig": "engine",
    "Passage": "retrieval",
    "Request": "engine",
    "RequestOutput": "engine",
    "SamplingParams": "engine",
    "SessionRAG": "session",
    "SessionState": "state",
    "SessionTargets": "writer",
    "StateStore": "state",
    "Writer": "writer",
    "WriterConfig": "writer",
    "load_model": "models",
}


def test_the_exported_names() -> None:
    assert set(pss_engine.__all__) == {*ERRORS, *HOMES, "__version__"}
    assert set(dir(pss_engine)) >= set(pss_engine.__all__)


@pytest.mark.parametrize("name", sorted({*ERRORS, *HOMES}))
def test_each_resolves_to_the_object_of_its_part(name: str) -> None:
    home = __import__(f"pss_engine.{HOMES.get(name, 'errors')}", fromlist=[name])
    assert getattr(pss_engine, name) is getattr(home, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pss_engine' has no attribute 'Missing'"):
        _ = pss_engine.Missing  # type: ignore[attr-defined]
