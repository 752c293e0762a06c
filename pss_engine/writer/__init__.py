"""Learning a state: targets, objective, trainer."""

from pss_engine.writer.config import INSTRUCTION, WriterConfig
from pss_engine.writer.extraction import extract_targets, find_targets
from pss_engine.writer.history import History, Record
from pss_engine.writer.learner import LearningFailed
from pss_engine.writer.prompts import clue_messages, readout_messages
from pss_engine.writer.targets import SessionTargets
from pss_engine.writer.writer import WriteJob, Writer, Written

__all__ = [
    "INSTRUCTION",
    "History",
    "LearningFailed",
    "Record",
    "SessionTargets",
    "WriteJob",
    "Writer",
    "WriterConfig",
    "Written",
    "clue_messages",
    "extract_targets",
    "find_targets",
    "readout_messages",
]
