"""Objectives, coverages and deletions are the paper's: which tokens are learned, in which phase."""

from __future__ import annotations

import pytest

from pss_engine.errors import ConfigError
from pss_engine.models import Tokenizer
from pss_engine.writer import History, Record, SessionTargets, Writer, WriterConfig
from pss_engine.writer.config import COVERAGES, DELETIONS, OBJECTIVES
from pss_engine.writer.coverage import chunks
from pss_engine.writer.objectives import phases
from tests.tiny import tiny_model, tiny_tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer())
TURNS = (
    {"role": "user", "content": "Topic is pumps. We used plan A. The gauge read 7 bar."},
    {"role": "assistant", "content": "We decide for plan B. Mira and Jon agree."},
    {"role": "user", "content": "Now tune valve C7."},
)
TARGETS = SessionTargets(
    "plan B valve C7",
    "plan A",
    "Topic is pumps",
    ("Mira", "Jon"),
    "plan B",
    "tune valve C7",
    "plan A",
    ("gauge read 7",),
)
HISTORY = History.of(TURNS, records=(Record("r1", "pump one"), Record("r2", "pump two"), Record("r3", "pump three")))


def plan(**settings):
    config = WriterConfig(min_lm_steps=2, chunk_tokens=16, **settings)
    return phases(config, TOKENIZER, HISTORY, TARGETS)


def learned(phase):
    return [TOKENIZER.decode(lesson.positive) for lesson in phase.lessons]


def read(coverage="full", deletions=(), chunk_tokens=16):
    config = WriterConfig(coverage=coverage, deletions=deletions, chunk_tokens=chunk_tokens)
    return [TOKENIZER.decode(chunk) for chunk in chunks(config, TOKENIZER, HISTORY, TARGETS)]


WHOLE = "".join(read())


@pytest.mark.parametrize(
    ("objective", "names", "targets"),
    [
        ("lm_only", ["history"], []),
        ("query_only", ["readout"], [["tune valve C7"]]),
        ("lm_plus_query", ["history", "readout"], [["tune valve C7"]]),
        ("multi_field", ["history", "readout"], [["Topic is pumps", "Mira, Jon", "plan B", "tune valve C7"]]),
        ("retrieval_aligned", ["history", "readout"], [["plan B valve C7"]]),
        (
            "multi_field_plus_retrieval",
            ["history", "readout", "readout"],
            [["Topic is pumps", "Mira, Jon", "plan B", "tune valve C7"], ["plan B valve C7"]],
        ),
    ],
)
def test_each_objective_learns_its_targets(objective, names, targets):
    found = plan(objective=objective)
    assert [phase.name for phase in found] == names
    readouts = [phase for phase in found if phase.name == "readout"]
    assert [learned(phase) for phase in readouts] == targets
    assert sum(phase.num_steps for phase in readouts) == (64 if readouts else 0)
    for phase in readouts:
        wanted = ["plan A"] if phase.lessons[0].negative else []
        assert [TOKENIZER.decode(lesson.negative) for lesson in phase.lessons if lesson.negative] == wanted


def test_a_record_is_learned_from_four_questions_four_times_each():
    (phase,) = plan(objective="records")
    assert phase.num_steps == 4 * 4 * 3
    assert learned(phase) == [text for text in ("pump one", "pump two", "pump three") for _ in range(4)]
    assert len({lesson.prompt for lesson in phase.lessons}) == 12
    assert all(lesson.negative and lesson.negative != lesson.positive for lesson in phase.lessons)
    with pytest.raises(ConfigError, match="the history has no records"):
        phases(WriterConfig(objective="records"), TOKENIZER, History.of(TURNS), TARGETS)


@pytest.mark.parametrize(("share", "coverage"), [(0.25, "first_25"), (0.5, "first_50"), (0.75, "first_75")])
def test_the_first_part_of_the_history(share, coverage):
    text = "".join(read(coverage))
    assert WHOLE.startswith(text) and abs(len(text) - share * len(WHOLE)) <= 2


def test_the_other_coverages():
    assert "".join(read("last_128")) == WHOLE[-128:] if len(WHOLE) % 16 != 1 else WHOLE[-129:-1]
    assert "".join(read("active_query")) == "tune valve C7"
    assert "".join(read("card", chunk_tokens=64)) == "topic: Topic is pumps\nentities: Mira, Jon"[:32]
    assert (
        sorted(read("shuffled")) == sorted(read())
        and read("shuffled") != read()
        and read("shuffled") == read("shuffled")
    )


@pytest.mark.parametrize(
    ("deletion", "gone"),
    [
        ("active_query", "valve C7"),
        ("topic", "Topic is pumps"),
        ("entities", "Jon"),
        ("key_evidence", "gauge"),
        ("latest_decision", "plan B"),
        ("superseded_decision", "plan A"),
    ],
)
def test_a_deletion_takes_the_sentences_out_and_leaves_the_rest(deletion, gone):
    text = "".join(read(deletions=(deletion,)))
    assert gone in WHOLE and gone not in text and len(text) > len(WHOLE) / 2


def test_a_deletion_that_finds_nothing_is_refused():
    config = WriterConfig(deletions=("topic",))
    for targets in (SessionTargets("c", topic="weather"), SessionTargets("c")):
        with pytest.raises(ConfigError, match="deletion topic: no sentence of the history has"):
            chunks(config, TOKENIZER, HISTORY, targets)


@pytest.mark.parametrize(
    ("field", "value", "choices"),
    [("objective", "all", OBJECTIVES), ("coverage", "most", COVERAGES), ("deletions", ("verbs",), DELETIONS)],
)
def test_an_unknown_choice_names_the_known_ones(field, value, choices):
    with pytest.raises(ConfigError, match=", ".join(choices[:3])):
        WriterConfig(**{field: value})


def test_settings_come_back_from_json():
    config = WriterConfig(deletions=("topic",), topology="dual", precision="int8")
    assert WriterConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match="writer setting 'steps' is unknown; choices: alpha"):
        WriterConfig.from_dict({"steps": 3})


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_writes_a_state(objective):
    config = WriterConfig(objective=objective, rank=2, alpha=4.0, min_lm_steps=1, readout_steps=5)
    state = Writer(tiny_model(), config).write("s", HISTORY, TARGETS)
    assert any(pair.b.count_nonzero() for pair in state.factors.values())
    assert state.meta.targets["clue"] == TARGETS.clue and state.meta.targets["source"] == "given"
