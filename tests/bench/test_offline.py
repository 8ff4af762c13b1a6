"""Figures of decode and prefill come from the steps in which nothing else happened."""

from __future__ import annotations

import pytest

from sojourn.bench.offline import StepBytes, measure_decode, measure_prefill
from sojourn.errors import StartupError
from sojourn.executor.scripted import Line, Script
from tests.core.engines import VOCAB, make_engine

BYTES = StepBytes(weights=1000, kv_per_token=2)
STEP_S = 0.004


def slow(**script: object) -> Script:
    return Script(vocab_size=VOCAB, seconds_per_step=STEP_S, **script)


def test_a_decode_step_takes_what_the_engine_takes():
    engine = make_engine(script=slow(), budget=16)  # prompts in several chunks, whose steps must not count
    report = measure_decode(engine, BYTES, streams=3, prompt_tokens=20, output_tokens=8, repeats=2)
    assert STEP_S <= report.forward_s <= report.step_s < 4 * STEP_S
    assert report.tok_s == pytest.approx(3 / report.step_s)
    assert report.step_s == pytest.approx(report.forward_s + report.sample_s + report.other_s, rel=0.2)


def test_a_step_reads_the_weights_once_and_the_kv_of_every_stream():
    engine = make_engine()
    report = measure_decode(engine, BYTES, streams=4, prompt_tokens=6, output_tokens=4, repeats=1)
    assert report.context == 8
    assert report.bytes_per_step == 1000 + 4 * 8 * 2


def test_streams_that_never_run_at_once_are_an_error():
    engine = make_engine(max_num_seqs=2)
    with pytest.raises(StartupError, match="never ran all at once"):
        measure_decode(engine, BYTES, streams=3, prompt_tokens=4, output_tokens=4, repeats=1)


def test_an_engine_that_fails_at_a_request_ends_the_measurement():
    engine = make_engine(script=Script(vocab_size=VOCAB, lines=[Line(prompt=[], tokens=[1], nan_at=0)]))
    with pytest.raises(StartupError, match="failed at a request"):
        measure_prefill(engine, tokens=5, repeats=1)


def test_prefill_counts_every_chunk():
    engine = make_engine(script=slow(), budget=16)
    report = measure_prefill(engine, tokens=40, repeats=3)
    assert report.seconds >= 3 * STEP_S
    assert report.tok_s == pytest.approx(40 / report.seconds)


def test_repeats_do_not_find_their_prompts_in_the_cache():
    engine = make_engine(caching=True)
    measure_prefill(engine, tokens=40, repeats=2)
    assert engine.stats().cached_tokens == 0
