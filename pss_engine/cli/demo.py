"""``pss demo``: the whole lifecycle on three bundled sessions."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pss_engine.cli.options import Json, ModelOptions
from pss_engine.errors import ConfigError

if TYPE_CHECKING:
    from pss_engine.cli.demo_run import Asked, DemoReport
    from pss_engine.engine import Engine

REPORT = "demo_report.json"
_DEFAULT_MODEL_OPTIONS = ModelOptions()


def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder of demo_report.json.")] = Path("."),
    store: Annotated[
        Path | None, Parameter(help="Keep the states in this store; default: a temporary one.", show_default=False)
    ] = None,
    model: ModelOptions = _DEFAULT_MODEL_OPTIONS,
    as_json: Json = False,
) -> None:
    """Write three bundled sessions and see why their states matter.

    Vague follow-ups that fit all three sessions are asked of each: with the raw query, with the session's own state,
    and with the state of another session.
    """
    import tempfile

    _check_writable(out)
    with ExitStack() as stack:
        folder = store or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pss-demo-")))
        report, document = _run(folder, store is not None, model, quiet=as_json)
    path = out / REPORT
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")

    from pss_engine.cli.output import emit_json, note

    if as_json:
        emit_json(document)
    else:
        print(report.closing_line)
    note(f"report: {path}")


def _run(folder: Path, keeps: bool, options: ModelOptions, quiet: bool) -> tuple[DemoReport, dict[str, Any]]:
    from pss_engine.cli import demo_view
    from pss_engine.cli.demo_run import DemoReport, ask_followups, write_states
    from pss_engine.cli.output import console, on_interrupt
    from pss_engine.cli.progress import writing
    from pss_engine.cli.runtime import open_engine, open_model
    from pss_engine.demo import load_demo
    from pss_engine.ops import OPS
    from pss_engine.retrieval import Corpus
    from pss_engine.session import SessionRAG
    from pss_engine.state import StateStore
    from pss_engine.writer import Writer, WriterConfig

    start, bundled, config = time.monotonic(), load_demo(), WriterConfig()
    screen = console()

    def show(batch: Sequence[Asked]) -> None:
        if not quiet:
            screen.print(demo_view.heading(batch))
            screen.print(demo_view.followup(batch))

    with on_interrupt(lambda: f"states written so far are in {folder}" if keeps else "nothing is kept"):
        base = open_model(options)
        engine = open_engine(options, base, [config.rank] * len(bundled.sessions))
        corpus = Corpus.load(bundled.corpus_path, base.tokenizer.hf)
        rag = SessionRAG(engine, corpus, StateStore(folder))
        if not quiet:
            screen.print(demo_view.opening(base, corpus))
        report = DemoReport(rag.top_k)
        report.written = write_states(rag, bundled, Writer(base, config), writing)
        if not quiet:
            screen.print(demo_view.states(report.written))
        report.asked = ask_followups(rag, bundled, show)
    engine.check()
    report.counters = engine.counters.to_dict()
    report.op_calls = {op.name: dict(op.calls) for op in OPS}
    report.seconds = time.monotonic() - start
    return report, {**report.to_dict(), "model": _model(engine), "versions": _versions(), "writer": config.to_dict()}


def _model(engine: Engine) -> dict[str, Any]:
    model = engine.model
    return {
        "name": model.name,
        "fingerprint": model.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "activations": engine.activations,
        "device": str(model.device),
        "num_shared_layers": model.transformer.num_shared_layers,
        "num_session_layers": len(model.transformer.session_layers),
        "kv_bytes_per_token": engine.memory.geometry.bytes_per_token,
    }


def _versions() -> dict[str, Any]:
    import platform

    import torch
    import transformers

    from pss_engine import __version__

    versions = {"pss_engine": __version__, "python": platform.python_version(), "torch": torch.__version__}
    return {**versions, "transformers": transformers.__version__, "num_threads": torch.get_num_threads()}


def _check_writable(out: Path) -> None:
    """Told now, not after the run."""
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise ConfigError(f"folder {str(out)!r} cannot be written; name another with --out")
