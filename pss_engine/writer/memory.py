"""How many sessions are learned at once: what one takes, and what there is."""

from __future__ import annotations

import os

import torch

from pss_engine.models import ModelConfig
from pss_engine.writer.config import WriterConfig

MOMENTS = 4
"""Float32 rows of N factors that a session holds: values, gradients, and two moments."""
SHARE_OF_FREE = 0.5
MAX_SESSIONS = 64


def session_bytes(config: WriterConfig, model: ModelConfig, num_layers: int, longest: int) -> int:
    """Bytes of one session while it is learned.

    Args:
        num_layers: layers with factors.
        longest: most rows of one of its updates.
    """
    features = sum(t.in_features + t.out_features for t in model.lora_targets.values())
    factors = config.rank * features * num_layers * 4 * (MOMENTS + 6 * config.stable)
    width = 4 * model.hidden_size + 2 * model.q_size + 2 * model.kv_size + 2 * model.intermediate_size
    # a layer's working set passes by once more, and what lies at the cut may be kept for every lesson that comes again
    trace = longest * 4 * (width * num_layers + 2 * width)
    kept = longest * 4 * model.hidden_size * config.min_lm_steps
    return factors + trace + kept


def num_sessions(budget_bytes: int, each_bytes: int) -> int:
    """Sessions that fit into a budget; at least one, which is tried whatever it takes."""
    return max(1, min(MAX_SESSIONS, budget_bytes // each_bytes))


def free_bytes(device: torch.device) -> int:
    """A share of the memory that is free now."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(free * SHARE_OF_FREE)
