"""Percentiles interpolate between neighbours, and nothing measured is NaN rather than an error."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.bench.spread import Spread, median, percentile

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(VALUES, st.floats(0, 100))
def test_percentiles_are_numpys(values, percent):
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


@given(VALUES)
def test_the_median_is_the_middle(values):
    assert median(values) == pytest.approx(statistics.median(values))


def test_a_spread_is_scaled():
    assert Spread.of([0.003, 0.001, 0.002], 1e3) == Spread(p50=2.0, p90=2.8, p99=pytest.approx(2.98), max=3.0)


def test_nothing_measured_is_nan():
    assert math.isnan(Spread.of([]).p99)
