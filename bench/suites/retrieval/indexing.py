"""Time and bytes of building an index, without the encoder, which is the same for all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.peers import find_peer
from bench.rows import Measurement
from bench.suites.retrieval.lexical import documents
from bench.suites.retrieval.synthetic import VECTOR_TYPES, Vectors, unit
from pss_engine.retrieval import BM25
from pss_engine.retrieval.quantize import store_as

NOT_EQUAL = "a build: the searches over it are checked"


def run(quick: bool) -> Iterator[Measurement]:
    size = 10_000 if quick else 100_000
    params = {"passages": size}
    held = Vectors(unit(size, 1))
    for kind in VECTOR_TYPES:
        seconds = _seconds(lambda kind=kind: store_as(held.float32, kind))
        stored, scales = store_as(held.float32, kind)
        num_bytes = stored.nbytes + (0 if scales is None else scales.nbytes)
        yield Measurement("index", params, f"pss_engine-{kind}", "build_seconds", "s", [seconds], NOT_EQUAL)
        yield Measurement("index", params, f"pss_engine-{kind}", "index_bytes", "bytes", [num_bytes], NOT_EQUAL)
    if (faiss := find_peer("faiss_flat")) is not None:
        seconds = _seconds(lambda: faiss.Flat(held.float32.numpy()))
        yield Measurement("index", params, faiss.NAME, "build_seconds", "s", [seconds], NOT_EQUAL)
        yield Measurement("index", params, faiss.NAME, "index_bytes", "bytes", [held.float32.nbytes], NOT_EQUAL)
    texts = [" ".join(document) for document in documents(size)]
    start = time.perf_counter()
    index = BM25(texts, analyzer=str.split)
    yield Measurement(
        "index", params, "pss_engine-bm25", "build_seconds", "s", [time.perf_counter() - start], NOT_EQUAL
    )
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder))
        num_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
    yield Measurement("index", params, "pss_engine-bm25", "index_bytes", "bytes", [num_bytes], NOT_EQUAL)
    if (bm25s := find_peer("bm25s_index")) is not None:
        seconds = _seconds(lambda: bm25s.Index(documents(size)))
        yield Measurement("index", params, bm25s.NAME, "build_seconds", "s", [seconds], NOT_EQUAL)


def _seconds(build: Callable[[], object]) -> float:
    start = time.perf_counter()
    build()
    return time.perf_counter() - start
