"""A request that waits 300 ms, prefills for 120 ms, decodes 200 tokens at 25 ms; alone and beside prompts of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sojourn.records import StepPlan
from sojourn.records.life import Station
from sojourn.timeline.account import token_rows, tpot_ns
from sojourn.timeline.causes import Cause, gaps
from tests.timeline.simulated import MS, Simulation, accounts, check_prefill, check_tiles

PROMPT = 1024


def cost(plan: StepPlan) -> float:
    """25 ms for the decodes of a step, 120 ms for 1,024 tokens of prompt."""
    counts = plan.cu_seqlens_q[1:] - plan.cu_seqlens_q[:-1]
    prompt_tokens = int(counts[counts > 1].sum())
    return 25.0 * bool((counts == 1).any()) + 120.0 * prompt_tokens / PROMPT


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    made = Simulation(monkeypatch, cost, num_blocks=200, block_size=32, max_num_seqs=2, budget=600)
    yield made
    made.close()


def exercise(simulation: Simulation, *, disturbances: int) -> None:
    """Two others hold both slots for 300 ms after the request has come."""
    for name in ("first", "second"):
        simulation.submit(name, [7, 8], max_tokens=13)
    simulation.step()
    simulation.submit("long", [10 + i % 150 for i in range(PROMPT)], max_tokens=200)
    simulation.run(until=lambda: bool(simulation.exchanges["long"].record.first_write_ns))
    for number in range(disturbances):
        simulation.submit(f"other-{number}", [200 + number] * 512, max_tokens=1)
        simulation.run(until=lambda number=number: simulation.exchanges[f"other-{number}"].over)  # type: ignore[misc]
    simulation.run()


@pytest.mark.parametrize(("disturbances", "total_ms", "mean_ms"), [(0, 5395, 25.0), (10, 5995, 28.0)])
def test_the_exercise(simulation: Simulation, disturbances: int, total_ms: int, mean_ms: float) -> None:
    exercise(simulation, disturbances=disturbances)
    record = simulation.exchanges["long"].record
    (choice,) = record.choices
    first, whole = accounts(record)
    assert first is not None
    assert first.total_ns == 420 * MS
    assert {name: part for name, part in first.parts.items() if part} == {
        Station.QUEUE: 300 * MS,
        Station.PREFILL: 120 * MS,
    }
    assert whole.total_ns == total_ms * MS
    assert whole.parts[Station.DECODE] == (total_ms - 420) * MS
    assert whole.unattributed_ns == 0
    mean = tpot_ns(choice, token_rows(choice))
    assert mean is not None
    assert round(mean / MS) == mean_ms
    (wait,) = choice.wait_intervals(record.ended_ns)[-1:]
    assert (wait.reason, wait.end_ns - wait.since_ns) == ("seq_slots", 300 * MS)
    check_tiles(record)
    check_prefill(choice)


def test_the_stretched_gaps_name_who_stretched_them(simulation: Simulation) -> None:
    exercise(simulation, disturbances=10)
    record = simulation.exchanges["long"].record
    (choice,) = record.choices
    found = gaps(record, choice, token_rows(choice), [])
    assert [gap.duration_ns // MS for gap in found] == [85] * 10 + [25] * 189
    assert [(gap.cause, gap.by) for gap in found[:10]] == [
        (Cause.PREFILL_IN_STEP, (f"other-{number}",)) for number in range(10)
    ]
    assert {gap.cause for gap in found[10:]} == {Cause.DECODE}
