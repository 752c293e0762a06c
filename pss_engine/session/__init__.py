"""The PSS lifecycle: a session's state turns a vague follow-up into a search, and the base model answers."""

from pss_engine.session.answer import Answer, Clue, Evidence
from pss_engine.session.pipeline import MODES, SessionRAG
from pss_engine.session.proposals import with_proposals
from pss_engine.session.readout import ReadoutCheck, ReadoutGate, record_readout
from pss_engine.session.writing import StateWriting, Stored

__all__ = [
    "MODES",
    "Answer",
    "Clue",
    "Evidence",
    "ReadoutCheck",
    "ReadoutGate",
    "SessionRAG",
    "StateWriting",
    "Stored",
    "record_readout",
    "with_proposals",
]
