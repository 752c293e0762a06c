"""A state as a folder: PEFT's two files and ``pss_state.json``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pss_engine.durable import sync_folder, write_durably
from pss_engine.errors import ConfigError, StateFormatError
from pss_engine.state.adapter_config import AdapterConfig
from pss_engine.state.file_source import FileSource, FolderSource
from pss_engine.state.files import disk_errors, to_json_bytes
from pss_engine.state.meta import STATE_FILE, StateMeta
from pss_engine.state.peft_config import parse_peft_config
from pss_engine.state.peft_format import CONFIG_FILE, TENSOR_FILE, Tensors, adapter_files, read_adapter
from pss_engine.state.precision import PACKED_FILE, PRECISIONS, pack, read_packed
from pss_engine.state.session_state import SessionState
from pss_engine.state.shape import MODULE_PARENTS, StateShape, module_key


@dataclass(frozen=True)
class StateRecord:
    """What ``pss_state.json`` says of a state: its name and digest, the bytes of its factors, where it comes from."""

    session_id: str
    digest: str
    num_bytes: int
    meta: StateMeta


def load_adapter(
    folder: str | Path,
    *,
    session_id: str | None = None,
    shape: StateShape | None = None,
    max_rank: int | None = None,
    follow_symlinks: bool = True,
) -> SessionState:
    """Read a state from its folder, or import any PEFT LoRA adapter that touches decoder layers only.

    Args:
        folder: the adapter folder. Without ``pss_state.json`` the origin is unknown: no fingerprints, seed or readout.
        session_id: whose state it becomes; default: what ``pss_state.json`` says, else the folder's name.
        shape: the model it must fit, None to check it against itself only.
        max_rank: largest rank allowed, None for any.
        follow_symlinks: False refuses links, for folders that others may write to.

    Returns:
        The state, tensors on the CPU in the file's dtype; digest and size are the recorded ones if there is a record.

    Raises:
        StateFormatError: the folder is missing, damaged, unsupported or does not fit.
        ConfigError: ``session_id`` or the folder's name cannot be a session id.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise StateFormatError(f"{folder}: no such adapter folder")
    name = re.sub(r"[^a-z0-9._-]", "-", folder.resolve().name.lower())
    return read_state(FolderSource(folder, follow_symlinks), session_id, name, shape, max_rank)


def read_state(
    source: FileSource,
    session_id: str | None,
    name: str = "",
    shape: StateShape | None = None,
    max_rank: int | None = None,
) -> SessionState:
    """A state from its files; ``name``: whose it is if neither ``session_id`` nor a record says. As load_adapter."""
    record = read_record(source)
    if record is not None and source.has(PACKED_FILE):
        tensors, config = _read_packed(source, record.meta)
    else:
        tensors, config, base_model = read_adapter(source, shape, max_rank)
    if record is None:
        meta = StateMeta(base_model=base_model)
    else:
        meta, name = record.meta, record.session_id
    state = SessionState.from_config(session_id or name, tensors, config, meta)
    if record is not None and (state.digest, state.num_bytes) != (record.digest, record.num_bytes):
        raise StateFormatError(
            f"{source.where(STATE_FILE)}: digest is {state.digest[:16]} and size {state.num_bytes} bytes, recorded are "
            f"{record.digest[:16]} and {record.num_bytes}: damaged or edited"
        )
    state.check(shape=shape, max_rank=max_rank)
    return state


def save_adapter(state: SessionState, folder: str | Path) -> Path:
    """Write a state as a new folder that PEFT and :func:`load_adapter` read; all of it appears at once or not at all.

    Raises:
        ConfigError: ``folder`` exists and is not an empty folder, or cannot be written.
        CapacityError: the disk is full.
        StateFormatError: the state is not sound.
    """
    folder = Path(folder).absolute()
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(f"{folder}: exists; name a new or an empty folder")
    state.check()
    temporary = folder.with_name(f".tmp-{folder.name}")
    with disk_errors("adapter folder", folder.parent, state.num_bytes):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_files(state_files(state, packed=False), temporary)
            temporary.replace(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def state_files(state: SessionState, packed: bool = True) -> dict[str, bytes]:
    """The three files of a state, by name. ``packed``: in its own precision, where it has another than bfloat16; else
    as PEFT reads them."""
    record = {
        "session_id": state.session_id,
        "digest": state.digest,
        "num_bytes": state.num_bytes,
        **state.meta.to_json(),
    }
    files = adapter_files(state.tensors(), state.config, state.meta.base_model)
    precision = state.meta.writer.get("precision", "bf16")
    if packed and precision in PRECISIONS:
        from safetensors.torch import save

        del files[TENSOR_FILE]
        files[PACKED_FILE] = save(pack(state.tensors(), precision, _seed(state.meta)))
    return {**files, STATE_FILE: to_json_bytes(record)}


def _read_packed(source: FileSource, meta: StateMeta) -> tuple[Tensors, AdapterConfig]:
    precision = meta.writer.get("precision")
    if precision not in PRECISIONS:
        raise StateFormatError(
            f"{source.where(STATE_FILE)}: precision {precision!r:.40} is unknown; choices: {', '.join(PRECISIONS)}"
        )
    where = source.where(CONFIG_FILE)
    peft = parse_peft_config(source.json(CONFIG_FILE), where)
    if not isinstance(peft.target_modules, tuple) or peft.layers is None:
        raise StateFormatError(f"{where}: a packed state names its modules and layers")
    keys = [(layer, module) for layer in sorted(peft.layers) for module in peft.target_modules]
    if unknown := [module for _, module in keys if module not in MODULE_PARENTS]:
        raise StateFormatError(f"{where}: no module {unknown[0]!r:.80}; choices: {', '.join(MODULE_PARENTS)}")
    ranks = {key: peft.rank(module_key(*key)) for key in keys}
    alphas = {key: peft.alpha(module_key(*key)) for key in keys}
    tensors = read_packed(source, precision, _seed(meta), ranks)
    return tensors, AdapterConfig.from_targets(ranks, alphas, peft.use_rslora)


def _seed(meta: StateMeta) -> int:
    return meta.seed or 0


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Create ``folder`` with these files; on return they are on the disk."""
    folder.mkdir()
    for name, data in files.items():
        write_durably(folder / name, [data])
    sync_folder(folder)


def read_record(source: FileSource) -> StateRecord | None:
    """What the files say of their state, without reading a tensor; None if they say nothing.

    Raises:
        StateFormatError: the file is damaged or of another release.
    """
    if not source.has(STATE_FILE):
        return None
    path, raw = source.where(STATE_FILE), source.json(STATE_FILE)
    session_id, digest, num_bytes = raw.pop("session_id", None), raw.pop("digest", None), raw.pop("num_bytes", None)
    if not isinstance(session_id, str) or not isinstance(digest, str) or type(num_bytes) is not int:
        raise StateFormatError(f"{path}: session_id and digest must be strings, num_bytes an integer")
    return StateRecord(session_id, digest, num_bytes, StateMeta.from_json(raw, path))
