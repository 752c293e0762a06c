"""``pss generate``: text from prompts, all in one batch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pss_engine.cli.options import Json, KVOptions, ModelOptions, SamplingOptions, StoreOptions
from pss_engine.errors import PSSError, RequestRejected

if TYPE_CHECKING:
    from pss_engine.engine import RequestOutput

_DEFAULT_MODEL_OPTIONS, _DEFAULT_SAMPLING_OPTIONS = ModelOptions(), SamplingOptions()
_DEFAULT_KV_OPTIONS, _DEFAULT_STORE_OPTIONS = KVOptions(), StoreOptions()


def generate(
    *prompts: str,
    stdin: Annotated[bool, Parameter(name="-", show=False)] = False,
    session: Annotated[
        str, Parameter(help="Decode with this session's state; default: the base model.", show_default=False)
    ] = "",
    raw: Annotated[bool, Parameter(help="Plain text, without the chat template.", show_default=False)] = False,
    sampling: SamplingOptions = _DEFAULT_SAMPLING_OPTIONS,
    kv: KVOptions = _DEFAULT_KV_OPTIONS,
    store: StoreOptions = _DEFAULT_STORE_OPTIONS,
    model: ModelOptions = _DEFAULT_MODEL_OPTIONS,
    as_json: Json = False,
) -> None:
    """Generate text, with a session's state or with the base model.

    Several prompts are decoded in one batch. The text goes to stdout, what it cost to stderr.

    Parameters
    ----------
    prompts
        Each is a user's message, or plain text with --raw; - reads one from stdin.
    """
    from pss_engine.cli.output import cost, emit_json, note, truncation
    from pss_engine.cli.runtime import engine_with, kv_budgets, open_store, sampling_params
    from pss_engine.engine import Request
    from pss_engine.kv import QueryUsage

    texts = [*prompts, *([sys.stdin.read()] if stdin else [])]
    if not texts:
        raise RequestRejected("no prompt was given; choices: one or more texts, - for stdin")
    if any(not text.strip() for text in texts):
        raise RequestRejected(f"prompt {next(i for i, t in enumerate(texts, 1) if not t.strip())} is empty")
    params = sampling_params(sampling)
    engine = engine_with(model, [open_store(store).get(session)] if session else [], kv)
    messages = [text if raw else [{"role": "user", "content": text}] for text in texts]
    shared: dict[str, Any] = {"session": session or None, "query": "generate", **kv_budgets(kv)}
    requests = [Request(message, params, **shared) for message in messages]
    outputs = engine.generate(requests)
    failed = next((output for output in outputs if output.finish_reason == "error"), None)
    if failed:
        raise PSSError(f"request {failed.request_id} failed: {failed.error}")
    if as_json:
        rows = [{"prompt": text, **_row(output)} for text, output in zip(texts, outputs, strict=True)]
        document = {"session": session or None, "outputs": rows, "counters": engine.counters.to_dict()}
        emit_json({**document, "memory": engine.device_memory().to_dict()})
        return
    for number, (text, output) in enumerate(zip(texts, outputs, strict=True), 1):
        if len(texts) > 1:
            note(f"{'' if number == 1 else chr(10)}[{number}] {text}")
        print(output.text, flush=True)
    usage = QueryUsage([output.usage for output in outputs])
    if cut := truncation(usage):
        note(cut)
    note(cost(usage.kv_peak_bytes, usage.kv_cumulative_bytes, max(output.timings.total_s for output in outputs)))


def _row(output: RequestOutput) -> dict[str, object]:
    return {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "state_digest": output.state_digest,
        "usage": output.usage.to_dict(),
        "seconds": {"first_token": output.timings.time_to_first_token_s, "total": output.timings.total_s},
    }
