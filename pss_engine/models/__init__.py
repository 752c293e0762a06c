"""The network: tensors in, tensors out. Requests, sessions and memory are above."""

from pss_engine.models.batch import Adapters, Attention, DenseAttention, ForwardBatch
from pss_engine.models.config import LoraTarget, ModelConfig
from pss_engine.models.loader import LoadedModel, load_model, load_tokenizer
from pss_engine.models.tokenizer import Message, Tokenizer
from pss_engine.models.transformer import Transformer

__all__ = [
    "Adapters",
    "Attention",
    "DenseAttention",
    "ForwardBatch",
    "LoadedModel",
    "LoraTarget",
    "Message",
    "ModelConfig",
    "Tokenizer",
    "Transformer",
    "load_model",
    "load_tokenizer",
]
