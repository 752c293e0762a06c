"""The agent pipeline over three memory tiers (CoA-PKV), and the arms that it is measured against."""

from __future__ import annotations

from pss_engine.agents.clues import Clues
from pss_engine.agents.endpoint import Call, Completion, Endpoint
from pss_engine.agents.engine_endpoint import EngineEndpoint
from pss_engine.agents.faults import Fault
from pss_engine.agents.http_endpoint import HTTPEndpoint
from pss_engine.agents.limits import Limits
from pss_engine.agents.nodes import AGENTS, Model
from pss_engine.agents.record import OUTCOMES, QueryRecord
from pss_engine.agents.request import ARMS, AgentRequest, as_arm
from pss_engine.agents.service import AgentService

__all__ = [
    "AGENTS",
    "ARMS",
    "OUTCOMES",
    "AgentRequest",
    "AgentService",
    "Call",
    "Clues",
    "Completion",
    "Endpoint",
    "EngineEndpoint",
    "Fault",
    "HTTPEndpoint",
    "Limits",
    "Model",
    "QueryRecord",
    "as_arm",
]
