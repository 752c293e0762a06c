"""Learning a state: targets, objective, trainer."""

from pss_engine.writer.config import INSTRUCTION, WriterConfig
from pss_engine.writer.history import History
from pss_engine.writer.prompts import clue_messages, readout_messages
from pss_engine.writer.targets import SessionTargets, extract_targets
from pss_engine.writer.writer import Writer

__all__ = [
    "INSTRUCTION",
    "History",
    "SessionTargets",
    "Writer",
    "WriterConfig",
    "clue_messages",
    "extract_targets",
    "readout_messages",
]
