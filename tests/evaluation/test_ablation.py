"""Runs go on where they were killed, and an ablation that may not be believed says why instead of a number."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from itertools import combinations

import pytest

from pss_engine.agents.memory import TraceMemory
from pss_engine.errors import ConfigError
from pss_engine.evaluation.ablation import ablation, drift
from pss_engine.evaluation.admission import differing, gaps
from pss_engine.evaluation.plan import turns
from pss_engine.evaluation.reachability import reachable, stripped
from pss_engine.evaluation.run import RECORDS, RunFolder, run
from pss_engine.evaluation.scores import exact_match, token_f1
from tests.agents.scripted import always, fault
from tests.evaluation.runs import CELLS, PER_CELL, REPLIES, plan_of, questions_in, service_over
from tests.retrieval.encoders import tiny_encoder


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    return questions_in(tmp_path_factory.mktemp("data"))


def ran(questions, path, script=None, memory=TraceMemory, **changes):
    plan = plan_of(questions, **changes)
    folder = RunFolder(path, plan)
    run(service_over(questions, script, memory), plan, questions, folder)
    return folder


@pytest.fixture(scope="module")
def folder(questions, tmp_path_factory):
    return ran(questions, tmp_path_factory.mktemp("run") / "run")


def report(folder):
    return ablation(folder.config, folder.records, folder.checks, tiny_encoder())


def test_arms_are_interleaved_and_each_goes_first_equally_often(questions):
    plan = plan_of(questions)
    order = list(turns(plan, questions))
    assert [turn.position for turn in order] == list(range(len(questions) * 4))
    pairs = [order[at : at + 2] for at in range(0, len(order), 2)]
    assert all({turn.question.id for turn in pair} == {pair[0].question.id} for pair in pairs)
    assert sum(pair[0].arm == "coa-pkv" for pair in pairs) == len(pairs) // 2
    assert all(differing(a.request.to_dict(), b.request.to_dict()) == {"kv_enabled"} for a, b in pairs)


@pytest.mark.parametrize("num_arms", [2, 3, 4, 5])
@pytest.mark.parametrize("replicates", [1, 2, 3])
def test_of_any_two_arms_each_comes_first_about_equally_often(questions, num_arms, replicates):
    many = (questions * 30)[:30]
    arms = ("flat", "rag", "coa-nokv", "coa-pkv", "coa-pss")[:num_arms]
    plan = plan_of(questions, arms=arms, replicates=replicates)
    asked = [replace(question, session="s") for question in many]
    order = [turn.arm for turn in turns(plan, asked)]
    rounds = [order[at : at + num_arms] for at in range(0, len(order), num_arms)]
    assert all(sorted(one) == sorted(arms) for one in rounds)
    for one, other in combinations(arms, 2):
        first = sum(each.index(one) < each.index(other) for each in rounds)
        assert abs(2 * first - len(rounds)) <= max(2, len(rounds) // 10)


def test_a_sound_run_is_admitted_and_its_effects_have_intervals(folder):
    found = report(folder)
    assert [cell["gaps"] for cell in found["cells"].values()] == [[], []]
    for cell in found["cells"].values():
        assert cell["effects"]["kv_peak_bytes"]["estimate"] > 0  # recalled traces make prompts longer
        assert cell["effects"]["f1"]["estimate"] == 0.0 and cell["effects"]["mcnemar_p"] == 1.0
        assert cell["effects"]["f1"]["n"] == PER_CELL * 2
    assert found["pooled"]["kv_peak_bytes"]["low"] > 0
    assert found["floor"] == {"band": 0.0, "gap": ""}
    assert found["counters"]["coa-pkv"]["num_recalled"] > 0 == found["counters"]["coa-nokv"]["num_recalled"]
    assert set(found["counters"]["coa-nokv"]) == set(found["counters"]["coa-pkv"])
    assert found["order"]["groups"] == 4 and found["order"]["p"] == 1.0
    assert found["faults"] == {"coa-pkv": {}, "coa-nokv": {}}


def test_recall_is_told_to_be_reachable_where_it_fired(folder):
    on = [row for row in folder.records if row["arm"] == "coa-pkv" and row["replicate"] == 0]
    texts = [row["request"]["question"] for row in on]
    assert reachable(tiny_encoder(), texts, 0.6) == [bool(row["recalled"]) for row in on]


def test_a_killed_run_goes_on_as_if_it_had_not_been_killed(questions, folder, tmp_path):
    class Killed(Exception):
        pass

    plan, path = plan_of(questions), tmp_path / "run"

    def progress(done, total):
        if done == 11:
            raise Killed

    with pytest.raises(Killed):
        run(service_over(questions), plan, questions, RunFolder(path, plan), progress)
    with (path / RECORDS).open("a") as file:
        file.write('{"replicate": 0, "cut o')
    again = RunFolder(path, plan)
    assert len(again.records) == 11
    run(service_over(questions), plan, questions, again)
    keys = ("replicate", "arm", "question_id", "answer", "outcome", "f1")
    assert [[row[key] for key in keys] for row in again.records] == [
        [row[key] for key in keys] for row in folder.records
    ]
    assert [len(row["recalled"]) for row in again.records] == [len(row["recalled"]) for row in folder.records]
    assert [row["usage"]["kv_peak_bytes"] for row in again.records] == [
        row["usage"]["kv_peak_bytes"] for row in folder.records
    ]
    assert RunFolder(path).records == again.records


def test_a_folder_of_another_plan_or_with_damage_is_refused(questions, tmp_path):
    path = tmp_path / "run"
    RunFolder(path, plan_of(questions))
    with pytest.raises(ConfigError, match="is of another plan"):
        RunFolder(path, plan_of(questions, seed=6))
    (path / RECORDS).write_text("{}\nno\n{}\n")
    with pytest.raises(ConfigError, match=r"records\.jsonl, line 2 is damaged"):
        RunFolder(path)
    with pytest.raises(ConfigError, match="is no run"):
        RunFolder(tmp_path / "nothing")


def test_traces_that_a_reset_left_are_contamination(questions, tmp_path):
    class Keeps(TraceMemory):
        def clear(self):
            return 0

    folder = ran(questions, tmp_path / "run", memory=Keeps)
    assert folder.checks[0]["contaminated"] == [] != folder.checks[1]["contaminated"]
    found = report(folder)
    assert found["pooled"] is None
    for cell in found["cells"].values():
        assert cell["effects"] is None and not cell["admitted"]
        assert any("replicate 1: 8 questions met a stored trace" in reason for reason in cell["gaps"])


def test_a_memory_that_never_recalls_is_seen_by_the_probe_and_by_no_summary_left_out(questions, tmp_path):
    class Forgets(TraceMemory):
        def search_outputs(self, *args, **kwargs):
            return []

    found = report(ran(questions, tmp_path / "run", memory=Forgets))
    for cell in found["cells"].values():
        assert "replicate 0: the live probe saw no recall with memory on" in cell["gaps"]
        assert "num_recall_searches is 0 in the enabled arm: the component did not run" in cell["gaps"]
    assert found["counters"]["coa-pkv"]["num_recall_searches"] == 0


CHANGES = {
    "provenance": (
        lambda on, off, checks: off[0].update(recall_allowed=None),
        "do not say that their request set kv_enabled to False",
    ),
    "two fields": (lambda on, off, checks: off[0]["request"].update(seed=9), "requests differ in kv_enabled, seed"),
    "field gone": (lambda on, off, checks: off[0]["request"].pop("scope"), "requests differ in kv_enabled, scope"),
    "missing": (lambda on, off, checks: off.pop(), "the disabled arm has 7 records; 8 are planned"),
    "leak": (
        lambda on, off, checks: off[0]["counters"].update(num_recalled=1),
        "num_recalled is 1 in the disabled arm",
    ),
    "unchecked": (lambda on, off, checks: checks.pop(), "replicate 1 was not checked"),
    "one way": (lambda on, off, checks: checks[0]["probe"]["on"].update(recalled=[]), "no recall with memory on"),
    "both ways": (lambda on, off, checks: checks[0]["probe"]["off"].update(searches=1), "recall path with memory off"),
    "order": (lambda on, off, checks: [row.update(position=-1) for row in on], "order and arm are confounded"),
    "idle": (
        lambda on, off, checks: [row["counters"].update(num_reranked=0) for row in on],
        "num_reranked is 0 in the enabled arm",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_check_refuses_what_it_is_for(folder, name):
    change, reason = CHANGES[name]
    rows = [row for row in copy.deepcopy(folder.records) if row["cell"] == CELLS[0]]
    on, off = ([row for row in rows if row["arm"] == arm] for arm in ("coa-pkv", "coa-nokv"))
    checks = copy.deepcopy(folder.checks)
    assert gaps(on, off, checks, 2, PER_CELL) == []
    change(on, off, checks)
    (found,) = gaps(on, off, checks, 2, PER_CELL)[:1]
    assert re.search(reason, found)


def test_faults_are_scored_zero_counted_by_cause_and_shown_both_ways(questions, tmp_path):
    def script(call, before):
        failing = call.agent == "synthesiser" and questions[0].text in call.messages[0]["content"]
        return fault("timeout") if failing else always(**REPLIES)(call, before)

    found = report(ran(questions, tmp_path / "run", script))
    assert found["faults"]["coa-pkv"] == found["faults"]["coa-nokv"] == {"failed: timeout": 2}
    effects = found["cells"][questions[0].cell]["effects"]
    assert effects["f1"]["n"] == 8 and effects["f1_without_failed"]["n"] == 6


def test_one_replicate_gives_no_floor_and_says_so(questions, tmp_path):
    found = report(ran(questions, tmp_path / "run", replicates=1))
    assert found["floor"]["band"] is None and "at least 2 replicates" in found["floor"]["gap"]


def test_drift_compares_the_ends_of_a_run():
    rows = [{"position": at, "seconds": 1.0 + (at >= 6) * 2.5} for at in range(9)]
    assert drift(list(reversed(rows))) == 3.5 and drift(rows[:2]) is None


def test_boilerplate_is_stripped_at_words():
    texts = [f"Answer the question. Where is {name}? Think step by step." for name in ("Ada", "Adam", "the Heron")]
    assert stripped(texts) == ["Ada?", "Adam?", "the Heron?"]
    assert stripped(["same"]) == ["same"] and stripped(["a b", "a b"]) == ["a b", "a b"]
    assert stripped(["Where", "Where now"]) == ["Where", "Where now"]


def test_scores_are_squads():
    assert exact_match("The Brest!", ["brest"]) == 1.0 and exact_match("Brest, France", ["brest"]) == 0.0
    assert token_f1("in Brest France", ["Brest"]) == pytest.approx(0.5)
    assert token_f1("", ["Brest"]) == 0.0 and token_f1("the", [""]) == 1.0
    assert token_f1("Ada", ["Heron", "Ada"]) == 1.0


def test_questions_that_are_none_are_named(tmp_path):
    from pss_engine.evaluation.questions import load_questions

    path = tmp_path / "q.jsonl"
    for text, reason in (("{}\n", "line 1: no question"), ("", "holds no question"), ("no\n", "line 1")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            load_questions(path, 1, 0)
    good = {"id": "a", "source": "s", "question": "?", "answer": "x", "paragraphs": []}
    path.write_text(json.dumps(good) + "\n")
    assert load_questions(path, 1, 0)[0].answers == ("x",)
    with pytest.raises(ConfigError, match="has 1 questions; 2 were asked for"):
        load_questions(path, 2, 0)
    path.write_text((json.dumps(good) + "\n") * 2)
    with pytest.raises(ConfigError, match="there twice"):
        load_questions(path, 1, 0)
