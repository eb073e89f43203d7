"""The simulated engine's scheduling rules, each on the smallest example that shows it. Blocks of 4 tokens."""

from dataclasses import replace

import pytest

from evenflow_contract.worker_config import Admission, ClassPrior, Predictor, WorkerConfig
from evenflow_model.fleet.records import EngineRequest, EngineSpec, RequestTooLarge
from evenflow_model.steptime import step_time_model
from evenflow_worker.simulated.core import EngineCore

STOCK = WorkerConfig(
    policy="FCFS",
    victim="LeastProgress",
    aging_seconds=0.0,
    classes=("chat", "code"),
    class_priors={"chat": ClassPrior(10, 4), "code": ClassPrior(10, 20)},
)
SVF = replace(STOCK, policy="SVF", victim="LargestVolume")


def engine(config: WorkerConfig = STOCK, **spec) -> EngineCore:
    defaults = {"kv_tokens": 40, "max_model_len": 1000, "block_size": 4, "max_num_batched_tokens": 64}
    return EngineCore(EngineSpec(**(defaults | spec)), config)


def add(core: EngineCore, name: str, prompt: int, output: int, *, most: int | None = None, cls: str = "chat") -> None:
    core.add(EngineRequest(name, prompt, output, most or output, cls, core.now))


def run(core: EngineCore, limit: int = 10_000) -> list:
    outcomes = []
    while core.has_work:
        outcomes.append(core.step())
        assert len(outcomes) < limit
    return outcomes


def finished(outcomes: list) -> list[str]:
    return [one.request_id for outcome in outcomes for one in outcome.finished]


def test_one_request_prefills_then_decodes():
    core = engine()
    add(core, "a", 10, 3)
    first = core.step()
    assert (first.admitted_new, first.tokens, first.first_tokens) == (("a",), ("a",), ("a",))
    assert (first.scheduled_tokens, first.prefill_tokens) == (10, 10)
    assert core.output_tokens("a") == 1
    assert (core.running, core.waiting, core.free_blocks) == (1, 0, 7)
    second, third = core.step(), core.step()
    assert (second.tokens, second.first_tokens, second.scheduled_tokens, second.prefill_tokens) == (("a",), (), 1, 0)
    assert [one.request_id for one in third.finished] == ["a"]
    assert (core.free_blocks, core.kv_usage, core.has_work) == (10, 0.0, False)
    with pytest.raises(KeyError):
        core.output_tokens("a")


def test_steps_take_the_modelled_time():
    core = engine(kv_tokens=4000)
    model = step_time_model("A100-8B", 2.5)
    add(core, "a", 10, 3)
    assert core.step().duration_s == pytest.approx(model.step_ms(10, 0, [(10, 0)]) / 1000)
    add(core, "b", 20, 3)
    mixed = core.step()
    assert mixed.duration_s == pytest.approx(model.step_ms(21, 11, [(20, 0)]) / 1000)
    assert core.now == pytest.approx(mixed.started_s + mixed.duration_s)
    assert core.step().duration_s == pytest.approx(model.step_ms(2, 12 + 21, []) / 1000)


def test_long_prompts_are_chunked_by_the_token_budget_behind_decodes():
    core = engine(kv_tokens=400, max_num_batched_tokens=16)
    add(core, "a", 3, 9)
    core.step()
    add(core, "b", 40, 2)
    steps = [core.step() for _ in range(3)]
    assert [step.prefill_tokens for step in steps] == [15, 15, 10]
    assert [step.scheduled_tokens for step in steps] == [16, 16, 11]
    assert [step.tokens for step in steps] == [("a",), ("a",), ("a", "b")]


def test_the_head_blocks_what_would_fit_behind_it():
    core = engine()
    add(core, "a", 28, 3)
    core.step()
    add(core, "big", 16, 1)
    add(core, "small", 1, 1)
    assert core.step().admitted_new == ()
    assert finished(run(core)) == ["a", "big", "small"]


def test_the_whole_prompt_must_fit_though_a_chunk_would():
    core = engine(max_num_batched_tokens=8)
    add(core, "a", 8, 20)
    core.step()
    add(core, "b", 36, 1)
    core.step()
    assert (core.running, core.waiting) == (1, 1)


def test_the_watermark_stays_free_while_others_run():
    core = engine(replace(STOCK, admission=Admission(watermark=0.3)))  # 3 of 11 blocks
    add(core, "a", 24, 2)
    core.step()
    add(core, "b", 8, 1)
    assert core.step().admitted_new == ()
    core.apply(replace(STOCK, admission=Admission(watermark=0.2)))
    add(core, "c", 1, 1)
    assert core.step().admitted_new == ("b", "c")


def test_the_watermark_does_not_hold_up_an_idle_engine():
    core = engine(replace(STOCK, admission=Admission(watermark=0.9)))
    add(core, "a", 38, 2)
    assert core.step().admitted_new == ("a",)


def test_eviction_keeps_tokens_and_computes_them_again():
    core = engine()
    add(core, "a", 16, 9)
    add(core, "b", 16, 9)
    outcomes = run(core)
    evicted = next(index for index, outcome in enumerate(outcomes) if outcome.evicted)
    # 5 blocks each from the second token on; the sixth comes with the sixth token.
    assert evicted == 5
    assert outcomes[evicted].evicted == ("b",)
    assert outcomes[evicted].admitted_new == outcomes[evicted].admitted_resumed == ()
    resumed = next(outcome for outcome in outcomes if outcome.admitted_resumed)
    assert resumed.admitted_resumed == ("b",)
    assert resumed.prefill_tokens == 21
    assert resumed.recomputed_tokens == 20  # the last token had not been computed before
    ends = {one.request_id: one for outcome in outcomes for one in outcome.finished}
    assert ends["b"].output_tokens == 9
    assert (ends["a"].evictions, ends["b"].evictions) == (0, 1)
    assert core.counters.recomputed_tokens == 20
    assert core.counters.prompt_tokens == 32
    assert core.counters.generation_tokens == 18
    assert core.counters.evictions == {"chat": 1}
    assert core.counters.admitted_resumed == {"chat": 1}
    assert core.free_blocks == 10


def test_the_victim_is_the_largest_volume_or_the_least_progressed():
    for config, victim in ((SVF, "old"), (replace(STOCK, victim="LargestVolume"), "old"), (STOCK, "new")):
        core = engine(config)
        add(core, "old", 18, 14)
        core.step()
        core.step()
        add(core, "new", 4, 14)
        evicted = [name for outcome in run(core) for name in outcome.evicted]
        assert evicted[0] == victim, config


def test_fcfs_readmits_the_evicted_before_everyone_svf_by_volume():
    for config, first in ((STOCK, "b"), (SVF, "tiny")):
        core = engine(config)
        add(core, "a", 16, 9)
        add(core, "b", 16, 9)
        while not core.step().evicted:
            pass
        add(core, "tiny", 4, 1)
        admitted = [name for outcome in run(core) for name in (*outcome.admitted_resumed, *outcome.admitted_new)]
        assert admitted[0] == first


def test_max_num_seqs_binds():
    core = engine(max_num_seqs=2)
    for name in "abc":
        add(core, name, 1, 2)
    assert core.step().admitted_new == ("a", "b")
    assert core.running == 2


def test_svf_serves_small_volumes_first():
    core = engine(SVF, max_num_seqs=1)
    add(core, "first", 1, 1)
    core.step()
    add(core, "long prompt", 12, 1)
    add(core, "long output", 5, 1, cls="code")
    add(core, "small", 5, 1)
    assert finished(run(core)) == ["small", "long prompt", "long output"]


def test_max_tokens_is_no_hint():
    core = engine(SVF, max_num_seqs=1, kv_tokens=400)
    add(core, "running", 1, 2)
    core.step()
    add(core, "allowed much", 9, 1, most=300)
    add(core, "allowed little", 10, 1, most=1)
    assert finished(run(core)) == ["running", "allowed much", "allowed little"]


def test_a_cap_counts_new_requests_only_and_never_starves_an_idle_engine():
    core = engine(replace(STOCK, admission=Admission("Limited", "Requests", 0.25)), kv_tokens=4000)
    for number in range(5):
        add(core, f"r{number}", 4, 30)
    admitted = [len(core.step().admitted_new) for _ in range(16)]
    assert admitted[0] == 1
    assert sum(admitted) == 4
    assert max(admitted) == 1


def test_a_volume_cap_admits_the_eviction_free_rate():
    """Full of equal requests, cap 1.0: M/E[volume] admissions an iteration, and memory is never short."""
    config = replace(STOCK, admission=Admission("Limited", "Volume", 1.0), class_priors={"chat": ClassPrior(16, 16)})
    core = engine(config, kv_tokens=4000, max_num_batched_tokens=4096)
    for number in range(600):
        add(core, f"r{number}", 16, 16)
    outcomes = run(core)
    assert core.counters.evictions.total() == 0
    volume = 4 * sum(-(-(17 + stage) // 4) for stage in range(16))
    steady = [len(outcome.admitted_new) for outcome in outcomes[10:30]]
    assert sum(steady) / 20 == pytest.approx(4000 / volume, rel=0.03)


def test_caps_change_live():
    core = engine(replace(STOCK, admission=Admission("Limited", "Requests", 0.01)), kv_tokens=4000)
    for number in range(10):
        add(core, f"r{number}", 4, 30)
    assert [len(core.step().admitted_new) for _ in range(3)] == [1, 0, 0]
    core.apply(replace(STOCK, admission=Admission("Limited", "Requests", 3.0)))
    assert len(core.step().admitted_new) == 2  # the free pass is still owed
    assert len(core.step().admitted_new) == 3
    core.apply(STOCK)
    assert len(core.step().admitted_new) == 4


def test_policy_changes_rekey_the_queue():
    core = engine(STOCK, max_num_seqs=1)
    for name, prompt in (("running", 1), ("big", 30), ("small", 2)):
        add(core, name, prompt, 2)
    core.step()
    core.apply(SVF)
    assert finished(run(core)) == ["running", "small", "big"]


def test_aging_ends_starvation():
    """A stream of small requests that fills the engine: without aging the large one waits to the end."""

    def finish_rank(aging: float) -> int:
        core = engine(replace(SVF, aging_seconds=aging), max_num_seqs=1)
        add(core, "large", 30, 4)
        add(core, "first", 1, 1)
        order: list[str] = []
        number = 0
        while core.has_work and number < 400:
            while core.waiting < 3:
                number += 1
                add(core, f"s{number}", 2, 2)
            order += finished([core.step()])
        return order.index("large") if "large" in order else len(order)

    assert finish_rank(0.0) > 350
    assert 100 < finish_rank(0.3) < 250


def test_requests_that_can_never_fit_are_refused_with_both_numbers():
    core = engine(max_model_len=100)
    with pytest.raises(RequestTooLarge, match=r"41 tokens.*40 tokens.*KV memory"):
        add(core, "a", 21, 20)
    with pytest.raises(RequestTooLarge, match=r"101 tokens.*100 tokens.*maximum length"):
        add(core, "a", 100, 1)
    add(core, "a", 20, 20)
    assert core.max_request_tokens == 40
    assert finished(run(core)) == ["a"]


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens", "max_tokens", "arrival_s"])
def test_malformed_requests_are_refused(field):
    request = replace(EngineRequest("a", 1, 1, 1, "chat", 0.0), **{field: float("nan") if field == "arrival_s" else 0})
    core = engine()
    with pytest.raises(ValueError, match=field):
        core.add(request)
    assert not core.has_work


def test_ids_are_unique_while_alive():
    core = engine()
    add(core, "a", 1, 1)
    with pytest.raises(ValueError, match="unique"):
        add(core, "a", 1, 1)
    run(core)
    add(core, "a", 1, 1)


def test_aborts_free_memory_wherever_the_request_is():
    core = engine()
    for name in "ab":
        add(core, name, 20, 9)
    core.step()
    assert (core.running, core.waiting) == (2, 0)
    add(core, "c", 20, 9)
    assert core.abort("c")
    assert core.abort("a")
    assert core.free_blocks == 5
    assert not core.abort("a")
    assert finished(run(core)) == ["b"]
    assert core.counters.aborted == 2
    assert core.free_blocks == 10


def test_stop_and_length():
    core = engine()
    add(core, "stops", 1, 3, most=9)
    add(core, "is cut", 1, 9, most=3)
    ends = {one.request_id: one for outcome in run(core) for one in outcome.finished}
    assert (ends["stops"].reason, ends["is cut"].reason) == ("stop", "length")
    assert ends["is cut"].output_tokens == 3


def test_counts_by_class_never_name_an_unlisted_one():
    core = engine()
    for number, cls in enumerate(("chat", "code", "made-up")):
        add(core, str(number), 1, 2, cls=cls)
    assert core.waiting_by_class() == core.in_flight_by_class() == {"chat": 1, "code": 1, "default": 1}
    run(core)
    assert core.counters.completed == core.counters.admitted_new == {"chat": 1, "code": 1, "default": 1}


def test_an_unknown_kind_of_predictor_is_a_counted_fallback():
    core = engine(replace(STOCK, predictor=Predictor("Model", "/nowhere")))
    add(core, "a", 1, 1)
    assert core.predictor_fallbacks == {"unavailable": 1}


def test_the_clock():
    core = engine()
    core.advance_idle(3.0)
    core.advance_idle(2.0)
    assert core.now == 3.0
    with pytest.raises(RuntimeError, match="no work"):
        core.step()
    add(core, "a", 1, 1)
    with pytest.raises(RuntimeError, match="only steps"):
        core.advance_idle(9.0)


def test_capacity_is_in_whole_blocks_and_one_more_is_reported():
    core = engine(kv_tokens=43)
    assert (core.kv_capacity_tokens, core.num_gpu_blocks, core.free_blocks) == (40, 11, 10)
    with pytest.raises(ValueError, match="kv_tokens"):
        engine(kv_tokens=3)
    with pytest.raises(ValueError, match="max_num_seqs"):
        engine(max_num_seqs=0)
