"""The page of a run: well-formed, whole, and safe against what models say."""

from __future__ import annotations

from xml.etree import ElementTree

from pss_engine.evaluation.ablation import ablation
from pss_engine.evaluation.page import page
from pss_engine.evaluation.run import RunFolder, run
from pss_engine.evaluation.summary import MEASURES, summary
from pss_engine.evaluation.svg import bars, calls_over_time
from tests.agents.scripted import always
from tests.evaluation.runs import REPLIES, plan_of, questions_in, service_over
from tests.retrieval.encoders import tiny_encoder

EVIL = "<script>alert('&')</script>"


def test_a_page_holds_every_arm_question_and_counter_and_no_markup_of_models(tmp_path):
    questions = questions_in(tmp_path)
    plan = plan_of(questions, replicates=1, arms=("flat", "coa-pkv", "coa-nokv"))
    folder = RunFolder(tmp_path / "run", plan)
    run(service_over(questions, always(**{**REPLIES, "synthesiser": EVIL})), plan, questions, folder)
    arms = summary(folder.config, folder.records)
    found = ablation(folder.config, folder.records, folder.checks, tiny_encoder())
    text = page({"arms": arms, "ablation": found, "no_ablation": ""}, folder.records)
    assert "<script" not in text and "&lt;script&gt;" in text
    assert text.count("<details>") == len(folder.records) == 24
    assert all(name in text for name in found["counters"]["coa-pkv"])
    assert text.count("<svg") == 5
    assert set(arms["flat"]["measures"]) == set(MEASURES)
    assert sum(arms["coa-pkv"]["peak_agents"].values()) == 1.0


def test_pictures_are_well_formed_and_to_scale():
    interval = {"estimate": 10.0, "low": 5.0, "high": 20.0}
    drawn = ElementTree.fromstring(
        bars("a < b", {"flat": interval, "rag": None, "coa": {**interval, "estimate": 5.0}}, str)
    )
    widths = [float(rect.get("width", 0)) for rect in drawn.iter("rect")]
    assert len(widths) == 2 and widths[0] == 2 * widths[1]
    assert "gap" in [text.text for text in drawn.iter("text")]


def test_calls_that_lived_together_stand_on_each_other():
    def span(start, end, held, agent="reasoner"):
        named = {"gen_ai.agent.name": agent, "pss.kv.peak_bytes": held}
        return {"name": "chat tiny", "start_ns": start, "end_ns": end, "attributes": named}

    drawn = ElementTree.fromstring(calls_over_time("kv", [span(0, 10, 100), span(5, 15, 100), span(15, 20, 50)], str))
    first, second, third = [rect for rect in drawn.iter("rect") if rect.get("stroke")]
    bottom = lambda rect: float(rect.get("y")) + float(rect.get("height"))  # noqa: E731
    assert bottom(first) == bottom(third) == 220 and bottom(second) == float(first.get("y"))
    assert "no call" in calls_over_time("kv", [], str)
