import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_operator.core.aimd import AimdSample, AimdSettings, AimdState, aimd_step

GOLDEN = json.loads((Path(__file__).parent / "golden" / "controller_seq.json").read_text())
SETTINGS = AimdSettings(nominal=4.0, gap=300.0, cooldown=math.ceil(250 / 100))


def sample(at: float = 100, evictions: float = 0, admitted: float = 400, peak: float = 0.5, waiting: float = 9) -> Any:
    return AimdSample(at, evictions, admitted, peak, waiting)


def test_the_eighteen_golden_steps_are_equal() -> None:
    state = AimdState(4.0)
    for step in GOLDEN["seq"]:
        seen = step["obs"]
        observed = None
        if seen is not None:
            evictions = math.nan if step["nan"] else seen["pre"]
            observed = AimdSample(seen["ts"], evictions, seen["adm"], seen["umax"], seen["waiting"])
        state, reason = aimd_step(state, observed, SETTINGS)
        assert (state.cap, reason, state.cooldown) == (step["cap"], step["reason"], step["cooldown"])


@pytest.mark.parametrize(
    "bad",
    [
        None,
        sample(at=math.inf),
        sample(evictions=-1),
        sample(peak=1.6),
        sample(waiting=math.nan),
        AimdSample(200, None, 1, 0.5, 1),
    ],
)
def test_what_is_invalid_holds_and_keeps_the_last_sample(bad: AimdSample | None) -> None:
    state = AimdState(3.0, sample(), cooldown=2)
    assert aimd_step(state, bad, SETTINGS) == (AimdState(3.0, sample(), 1), "hold_invalid")


def test_the_largest_cut_is_bounded() -> None:
    after, _ = aimd_step(AimdState(4.0, sample()), sample(at=200, evictions=1e9, admitted=401), SETTINGS)
    assert after.cap == pytest.approx(4.0 * 0.76)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 500), st.floats(0, 100), st.floats(0, 500), st.floats(0, 1.5), st.sampled_from([0.0, 5.0])
        ),
        max_size=60,
    )
)
def test_the_cap_stays_within_its_bounds(steps: list[tuple[float, float, float, float, float]]) -> None:
    state, at, evictions, admitted = AimdState(4.0), 0.0, 0.0, 0.0
    for pause, more_evictions, more_admitted, peak, waiting in steps:
        at, evictions, admitted = at + pause, evictions + more_evictions, admitted + more_admitted
        state, _ = aimd_step(state, AimdSample(at, evictions, admitted, peak, waiting), SETTINGS)
        assert 2.0 <= state.cap <= 10.0
