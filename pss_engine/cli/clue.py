"""``pss clue``: what a session's state says to search for."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from pss_engine.cli.options import Json, KVOptions, ModelOptions, StoreOptions

_DEFAULT_MODEL_OPTIONS, _DEFAULT_KV_OPTIONS, _DEFAULT_STORE_OPTIONS = ModelOptions(), KVOptions(), StoreOptions()


def clue(
    session: str,
    query: str,
    /,
    *,
    max_clue_tokens: Annotated[int, Parameter(help="At most this many.")] = 64,
    kv: KVOptions = _DEFAULT_KV_OPTIONS,
    store: StoreOptions = _DEFAULT_STORE_OPTIONS,
    model: ModelOptions = _DEFAULT_MODEL_OPTIONS,
    as_json: Json = False,
) -> None:
    """Let a session's state turn a follow-up into a search text.

    The clue goes to stdout, what it cost to stderr.

    Parameters
    ----------
    session
        A session of the store.
    query
        The follow-up.
    """
    from pss_engine.cli.output import cost, emit_json, note, truncation
    from pss_engine.cli.runtime import engine_with, kv_budgets, open_store
    from pss_engine.session import SessionRAG

    states = open_store(store)
    engine = engine_with(model, [states.get(session)], kv)
    rag = SessionRAG(engine, None, states, max_clue_tokens=max_clue_tokens, **kv_budgets(kv))
    said = rag.clues([(session, query)])[0]
    if as_json:
        usage, memory = said.usage.to_dict(), engine.device_memory().to_dict()
        document = {"session": session, "query": query, "clue": said.text, "state_digest": said.state_digest}
        emit_json({**document, "usage": usage, "seconds": said.seconds, "memory": memory})
        return
    print(said.text)
    if cut := truncation(said.usage):
        note(cut)
    note(cost(said.usage.kv_peak_bytes, said.usage.kv_cumulative_bytes, said.seconds))
