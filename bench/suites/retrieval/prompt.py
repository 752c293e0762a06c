"""From the last token of a clue to the answer prompt, and to the first token of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.rows import Measurement
from bench.suites import MODEL, Options
from bench.suites.retrieval.data import followup_corpus, followup_queries
from bench.timing import paired_seconds
from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.models import LoadedModel, load_model
from pss_engine.retrieval import BM25, Corpus, Hybrid
from pss_engine.session.prompts import AnswerPrompt, answer_messages

K = 4
CLUES = 8


def run(options: Options) -> Iterator[Measurement]:
    corpus = followup_corpus(options)
    if corpus is None:
        return
    model = load_model(MODEL, device="cpu")
    corpus = Corpus.load(corpus, model.tokenizer.hf)
    queries = followup_queries(options, "rewrite")[:CLUES]
    hybrid = Hybrid(BM25(corpus))
    paths = {"fused": lambda: fused(model, hybrid, queries), "step by step": lambda: stepwise(model, hybrid, queries)}
    same = _same_text(model, paths["fused"](), paths["step by step"]())
    params = {"model": model.name, "passages": len(corpus), "questions": len(queries), "k": K}
    for name, samples in paired_seconds(paths, 5 if options.quick else 15).items():
        yield Measurement(
            "clue to prompt", params, f"pss_engine-{name.replace(' ', '-')}", "seconds", "s", samples, same
        )
    engine = Engine(model, EngineConfig(prefix_caching=False))
    first = {name: (lambda path=path: _first_tokens(engine, path()[:1])) for name, path in paths.items()}
    one = {**params, "questions": f"{len(queries)} searched, 1 answered"}
    for name, samples in paired_seconds(first, 3).items():
        yield Measurement(
            "clue to first token", one, f"pss_engine-{name.replace(' ', '-')}", "seconds", "s", samples, same
        )


def fused(model: LoadedModel, hybrid: Hybrid, clues: Sequence[str]) -> list[list[int]]:
    """Search in one call; stored token ids go into the prompts."""
    found = hybrid.retrieve([[clue] for clue in clues], K)
    prompt = AnswerPrompt(model.tokenizer)
    after = [prompt.after(clue, True) for clue in clues]
    return [ids.tolist() for ids in hybrid.prompts(found, [prompt.before] * len(clues), after, prompt.separator)]


def stepwise(model: LoadedModel, hybrid: Hybrid, clues: Sequence[str]) -> list[list[int]]:
    """Search each clue, look its passages up, render the template, tokenise the prompt."""
    prompts = []
    for clue in clues:
        hits = hybrid.search([clue], K)[0]
        passages = [hybrid.corpus.by_id(hit.passage_id) for hit in hits]
        prompts.append(model.tokenizer.chat(answer_messages(clue, passages)))
    return prompts


def _same_text(model: LoadedModel, one: list[list[int]], other: list[list[int]]) -> bool | str:
    decode = model.tokenizer.decode
    differ = sum(decode(a, False) != decode(b, False) for a, b in zip(one, other, strict=True))
    return True if not differ else f"texts of {differ} of {len(one)} prompts differ"


def _first_tokens(engine: Engine, prompts: list[list[int]]) -> None:
    engine.generate([Request(ids, SamplingParams(max_new_tokens=1)) for ids in prompts])
