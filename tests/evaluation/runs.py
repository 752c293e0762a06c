"""A small dataset, and a service that answers it from a script."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pss_engine.agents import AGENTS, AgentService, Limits, Model
from pss_engine.agents.memory import EvidencePool, MemoryKV, TraceMemory
from pss_engine.evaluation.plan import RunPlan
from pss_engine.evaluation.questions import Question, load_questions
from pss_engine.metrics import AgentCounters
from pss_engine.retrieval.stores import MemoryStore
from tests.agents.scripted import Scripted, always
from tests.retrieval.encoders import tiny_encoder

CELLS = ("hotpot", "musique")
PER_CELL = 4
REPLIES = {"decomposer": "Where?", "reasoner": "The Heron lies there. " * 20}
"""Conclusions so long that recalling them makes the Reasoner's call the largest."""


def write_questions(folder: Path) -> Path:
    rows = [
        {
            "id": f"{cell}/{at}",
            "source": cell,
            "question": f"Where is boat {at} of {cell}?",
            "answer": "Brest" if at % 2 else "Lisbon",
            "answer_aliases": ["the port of Brest"] if at % 2 else [],
            "paragraphs": [
                {"title": "Boat", "text": f"Boat {at} of {cell} lies in Brest."},
                {"title": "Soup", "text": "Leek soup on Friday."},
            ],
        }
        for cell in CELLS
        for at in range(PER_CELL + 1)
    ]
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions_in(folder: Path) -> list[Question]:
    return load_questions(write_questions(folder), PER_CELL, 0)


def plan_of(questions: list[Question], **changes: Any) -> RunPlan:
    values: dict[str, Any] = {
        "arms": ("coa-pkv", "coa-nokv"),
        "question_ids": tuple(question.id for question in questions),
        "replicates": 2,
        "seed": 5,
        "dataset": "questions.jsonl",
        "cells": {cell: PER_CELL for cell in CELLS},
        "endpoints": {"all": "scripted"},
        "limits": json.loads(json.dumps(asdict(Limits()))),
        "versions": {},
    }
    return RunPlan(**{**values, **changes})


def service_over(
    questions: list[Question], script: Any = None, memory: type[TraceMemory] = TraceMemory
) -> AgentService:
    encoder, counters, storage = tiny_encoder(), AgentCounters(), MemoryKV()
    endpoint = Scripted(script or always(**REPLIES))
    passages = [passage for question in questions for passage in question.passages]
    return AgentService(
        {agent: Model(endpoint) for agent in AGENTS},
        EvidencePool(MemoryStore(encoder.dim), encoder, passages, counters),
        memory(MemoryStore(encoder.dim), storage, encoder, counters),
        storage,
        counters,
    )
