"""From what a user names to files on disk: a folder, a GGUF file, an installed model package, a hub id."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from pss_engine.errors import ConfigError


@dataclass(frozen=True)
class ModelSource:
    """Where a model lies: ``kind`` is ``"hf"`` (a folder with config.json) or ``"gguf"`` (one file)."""

    name: str
    kind: str
    path: Path


def resolve(name: str) -> ModelSource:
    """Find the files of a model, in this order: local path, installed package, hub id.

    A package is found through its metadata and never imported.

    Raises:
        ConfigError: nothing by that name, or what is there holds no model.
    """
    path = Path(name).expanduser()
    if path.exists():
        return _local(name, path)
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")):
        raise ConfigError(f"model file {name!r} does not exist")
    if "/" not in name:
        return _package(name)
    return _hub(name)


def _local(name: str, path: Path) -> ModelSource:
    if path.is_file():
        if path.suffix == ".gguf":
            return ModelSource(name, "gguf", path)
        raise ConfigError(f"model {name!r} is a {path.suffix or 'plain'} file; choices: a .gguf file or a model folder")
    if (path / "config.json").is_file():
        return ModelSource(name, "hf", path)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelSource(name, "gguf", ggufs[0])
    if ggufs:
        raise ConfigError(f"model folder {name!r} holds {len(ggufs)} GGUF files; name one: {ggufs[0].name}, ...")
    raise ConfigError(f"model folder {name!r} has neither config.json nor a .gguf file")


def _package(name: str) -> ModelSource:
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"model {name!r} is neither a local path nor an installed package;"
            " choices: a folder, a .gguf file, an installed model package, a hub id (owner/name)"
        ) from None
    for file in sorted(files, key=str):
        if file.suffix == ".gguf":
            return ModelSource(name, "gguf", Path(str(file.locate())))
        if file.name == "config.json" and (Path(str(file.locate())).parent / "model.safetensors").is_file():
            return ModelSource(name, "hf", Path(str(file.locate())).parent)
    raise ConfigError(
        f"package {name!r} is installed but carries no .gguf file and no config.json with model.safetensors"
    )


def _hub(name: str) -> ModelSource:
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        folder = Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # the client raises many kinds, all of which mean the same to the user
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"model {name!r} is not on this disk and could not be fetched from the hub: {reason}"
        ) from error
    return _local(name, folder)
