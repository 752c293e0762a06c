"""The PSS lifecycle: a session's state turns a vague follow-up into a search, and the base model answers."""

from pss_engine.session.answer import Answer, Clue, Evidence
from pss_engine.session.pipeline import MODES, SessionRAG, record_readout

__all__ = ["MODES", "Answer", "Clue", "Evidence", "SessionRAG", "record_readout"]
