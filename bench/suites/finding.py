"""What each way of searching finds for the same follow-ups; shared by the suites that ask sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pss_engine.engine import Engine
from pss_engine.models import LoadedModel
from pss_engine.retrieval import Passage
from pss_engine.session import Clue, Evidence, SessionRAG

QUALITY = "a quality: nothing to be equal to"
"""``checked`` of rows that are no times."""

WAYS = ("raw", "clue", "rrf", "readout", "target", "wrong state")


@dataclass(frozen=True)
class Probe:
    """A follow-up of a session, and the evidence that answers it.

    Attributes:
        gold: groups of passage ids; a group is found if one of its passages is.
    """

    session: str
    query: str
    gold: tuple[frozenset[str], ...]

    def recall(self, found: Evidence) -> float:
        """Share of the groups that were found."""
        ids = {passage.id for passage in found.passages}
        return sum(bool(group & ids) for group in self.gold) / len(self.gold)


def gold_among(passages: Iterable[Passage], gold: Collection[str]) -> frozenset[str]:
    """Ids of the passages that are gold, or windows of a gold document."""
    return frozenset(passage.id for passage in passages if passage.id in gold or passage.doc_id in gold)


def next_session(sessions: Sequence[str]) -> dict[str, str]:
    """For each session another one, whose state is the wrong one."""
    return dict(zip(sessions, [*sessions[1:], *sessions[:1]], strict=True))


def find(
    rag: SessionRAG, probes: Sequence[Probe], wrong: Mapping[str, str]
) -> tuple[list[Clue], dict[str, list[Evidence]]]:
    """The clues of the right states, and by way of searching the evidence for each probe.

    ``raw`` searches with the query, ``clue`` with the clue, ``rrf`` fuses both, ``readout`` takes the query and the
    state's fixed readout, ``target`` the clue that the state was trained to say (what learning could reach at best),
    ``wrong state`` the clue that another session's state gives for the same query.
    """
    clues = rag.clues([(probe.session, probe.query) for probe in probes])
    astray = rag.clues([(wrong[probe.session], probe.query) for probe in probes])
    metas = [rag.engine.states.get(probe.session).meta for probe in probes]
    searches = {
        "raw": [[probe.query] for probe in probes],
        "clue": [[clue.text] for clue in clues],
        "rrf": [[probe.query, clue.text] for probe, clue in zip(probes, clues, strict=True)],
        "readout": [[f"{probe.query} {meta.readout}"] for probe, meta in zip(probes, metas, strict=True)],
        "target": [[meta.clue or ""] for meta in metas],
        "wrong state": [[clue.text] for clue in astray],
    }
    return clues, {way: rag.retrieve(searches[way]) for way in WAYS}


def share(values: Sequence[float]) -> tuple[list[float], int]:
    """Samples and n of a row that is the mean over probes: one number that rests on all of them."""
    return [sum(values) / len(values)], len(values)


def backend(engine: Engine) -> str:
    """Our name, with the backend of the LoRA op on the model's device."""
    from pss_engine.ops.lora import lora_bgmv

    return f"pss_engine ({lora_bgmv.backends(engine.model.device.type)[0]})"


def settings(model: LoadedModel, rag: SessionRAG) -> dict[str, object]:
    """Params of every row of such a suite."""
    return {"model": model.name, "dtype": str(model.dtype).removeprefix("torch."), "k": rag.top_k}
