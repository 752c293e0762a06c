"""vLLM's CPU build with its multi-LoRA; it tells no time of the first token offline, so tokens per second only."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import vllm
from transformers import PreTrainedModel
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from bench.peers.peft_writer import load
from bench.serving import Served
from pss_engine.models.source import ModelSource

NAME = f"vllm {vllm.__version__}"
MAX_RANK = 32
KV_CACHE_GIB = 1


class Server:
    def __init__(self, source: ModelSource, adapters: Mapping[str, Path], max_tokens: int) -> None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(KV_CACHE_GIB))
        self._folder = tempfile.TemporaryDirectory(prefix="pss-bench-vllm-")
        _save_plain(load(source), self._folder.name)
        threads = torch.get_num_threads()
        self._model = LLM(
            self._folder.name,
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=max_tokens,
            enable_prefix_caching=False,
            enable_lora=True,
            max_loras=len(adapters),
            max_lora_rank=MAX_RANK,
        )
        torch.set_num_threads(threads)  # vLLM computes in a process of its own, and leaves one thread to this one
        self._adapters = {
            name: LoRARequest(name, number, str(folder)) for number, (name, folder) in enumerate(adapters.items(), 1)
        }

    def serve(self, prompts: Sequence[Sequence[int]], sessions: Sequence[str], max_new_tokens: int) -> Served:
        params = SamplingParams(temperature=0, max_tokens=max_new_tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        outputs = self._model.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            params,
            lora_request=[self._adapters[session] for session in sessions],
            use_tqdm=False,
        )
        seconds = time.perf_counter() - start
        return Served([list(output.outputs[0].token_ids) for output in outputs], [], [], seconds)


def _save_plain(model: PreTrainedModel, folder: str) -> None:
    """A folder of float32 weights: transformers refuses to save what came from a GGUF file as long as it says so."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
        model.hf_quantizer = None
    model.save_pretrained(folder)
