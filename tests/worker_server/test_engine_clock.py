"""The clock of a simulated engine, with a wall that the test moves."""

import pytest

from evenflow_worker.simulated.clock import CATCH_UP_WALL_SECONDS, EngineClock


class Wall:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def wall():
    return Wall()


def test_time_is_scaled(wall):
    clock = EngineClock(20.0, wall)
    wall.now += 0.5
    assert clock.now() == pytest.approx(10.0)
    assert clock.wall_seconds_until(30.0) == pytest.approx(1.0)
    assert clock.wall_seconds_until(0.0) == pytest.approx(-0.5)


def test_an_engine_that_keeps_up_loses_nothing(wall):
    clock = EngineClock(10.0, wall)
    for step in range(1, 101):
        wall.now = 1000.0 + step * 0.01
        clock.ran(0.1, step * 0.1)
    assert clock.busy_seconds == pytest.approx(10.0)
    assert clock.lost_seconds == 0.0
    assert clock.lag_ratio == 0.0


def test_a_hiccup_is_made_up_for(wall):
    clock = EngineClock(10.0, wall)
    wall.now += 0.9 * CATCH_UP_WALL_SECONDS
    clock.ran(0.1, 0.1)
    assert clock.lost_seconds == 0.0
    assert clock.now() == pytest.approx(9.0 * CATCH_UP_WALL_SECONDS)


def test_what_cannot_be_caught_up_is_lost_and_counted(wall):
    clock = EngineClock(10.0, wall)
    wall.now += 2.0
    clock.ran(4.0, 4.0)
    # 20 engine seconds should have passed, 4 did, 2.5 may be caught up.
    assert clock.lost_seconds == pytest.approx(13.5)
    assert clock.lag_ratio == pytest.approx(13.5 / 4.0)
    assert clock.now() == pytest.approx(4.0 + 10.0 * CATCH_UP_WALL_SECONDS)


def test_an_engine_at_half_speed_lags_by_its_own_length(wall):
    clock = EngineClock(10.0, wall)
    engine = 0.0
    for _ in range(1000):
        wall.now += 0.02
        engine += 0.1
        clock.ran(0.1, engine)
    assert clock.lag_ratio == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("scale", [0.0, -1.0, 101.0, float("nan")])
def test_impossible_scales(scale):
    with pytest.raises(ValueError, match="time_scale"):
        EngineClock(scale)
