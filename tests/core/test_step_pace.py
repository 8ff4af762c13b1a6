"""The pace: chunks such that a step beside streams takes so many times what the streams take alone."""

from __future__ import annotations

import random

import pytest

from sojourn.core.step_pace import FIRST_CHUNK, LEAST_CHUNK, StepPace


def observe_machine(
    pace: StepPace, *, alone: float, per_token: float, depth: int = 0, steps: int = 40, noise: float = 0.0
) -> float:
    """Steps on a machine that takes so many seconds for a stream's decode and per prompt token; the last one's."""
    rng, seconds = random.Random(1), 0.0
    for step in range(steps):
        chunk = 0 if step % 4 == 0 else pace.prompt_tokens_beside(1, depth)
        seconds = (alone + per_token * chunk) * (1 + noise * rng.random())
        pace.observe(1, chunk, depth, seconds)
    return seconds


@pytest.mark.parametrize("alone", [0.001, 0.004, 0.2])
@pytest.mark.parametrize("stretch", [2.0, 5.0, 20.0])
def test_a_step_takes_at_most_the_stretch_of_a_decode_alone(alone: float, stretch: float) -> None:
    pace = StepPace(stretch)
    per_token = alone * 0.03
    last = observe_machine(pace, alone=alone, per_token=per_token)
    assert last <= stretch * alone * 1.001
    assert last + per_token >= stretch * alone * 0.999, "a token more would have fitted"


def test_a_single_disturbed_step_changes_nothing() -> None:
    pace = StepPace(5.0)
    observe_machine(pace, alone=0.004, per_token=0.0002)
    before = pace.prompt_tokens_beside(1, 0)
    pace.observe(1, before, 0, 3.0)
    pace.observe(1, 0, 0, 3.0)
    assert pace.prompt_tokens_beside(1, 0) == before


def test_decodes_between_two_prompts_may_often_be_disturbed() -> None:
    pace = StepPace(5.0)
    observe_machine(pace, alone=0.004, per_token=0.0002, steps=400)
    before = pace.prompt_tokens_beside(1, 0)
    for _ in range(30):
        pace.observe(1, 0, 0, 0.015)
    assert pace.prompt_tokens_beside(1, 0) == before


def test_it_follows_a_machine_that_becomes_slower() -> None:
    pace = StepPace(5.0)
    observe_machine(pace, alone=0.004, per_token=0.0001)
    last = observe_machine(pace, alone=0.004, per_token=0.0004, noise=0.05)
    assert last <= 5.0 * 0.004 * 1.06


def test_deep_in_a_prompt_a_token_costs_more_and_the_next_prompt_begins_anew() -> None:
    pace = StepPace(5.0)
    observe_machine(pace, alone=0.004, per_token=0.0002, depth=100)
    observe_machine(pace, alone=0.004, per_token=0.0008, depth=2000)
    assert pace.prompt_tokens_beside(1, 2000) == pytest.approx(20, abs=1)
    assert pace.prompt_tokens_beside(1, 100) == pytest.approx(80, abs=1)
    assert pace.prompt_tokens_beside(1, 5000) == pytest.approx(20, abs=1), "as the nearest known depth"


def test_every_step_of_a_long_prompt_keeps_to_the_stretch() -> None:
    pace = StepPace(5.0)
    pace.observe(1, 0, 0, 0.004)
    for prompt in range(3):
        depth = 0
        while depth < 4000:
            chunk = pace.prompt_tokens_beside(1, depth)
            seconds = 0.004 + chunk * (0.0004 + 0.0000004 * depth)  # attention: a token looks at all before it
            pace.observe(1, chunk, depth, seconds)
            depth += chunk
            assert prompt == 0 or seconds <= 5.0 * 0.004 * 1.1


def test_prompts_always_advance_and_begin_with_a_guess() -> None:
    pace = StepPace(1.0)
    assert pace.prompt_tokens_beside(3, 0) == FIRST_CHUNK
    pace.observe(0, 512, 0, 1.0)
    assert pace.prompt_tokens_beside(3, 0) == FIRST_CHUNK, "a step without streams says nothing about them"
    pace.observe(1, 0, 0, 0.004)
    pace.observe(1, 32, 0, 0.1)
    assert pace.prompt_tokens_beside(3, 0) == LEAST_CHUNK


def test_steps_of_other_batch_sizes_stand_in_until_there_are_some() -> None:
    pace = StepPace(5.0)
    pace.observe(16, 0, 0, 0.016)
    pace.observe(16, 32, 0, 0.048)
    assert pace.prompt_tokens_beside(1, 0) == 64
    pace.observe(1, 0, 0, 0.004)
    assert pace.prompt_tokens_beside(1, 0) == 16
    assert pace.prompt_tokens_beside(17, 0) == 64
