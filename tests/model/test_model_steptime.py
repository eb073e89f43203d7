import pytest

from evenflow_model.steptime import (
    LLAMA_3_8B,
    LLAMA_3_70B,
    STEP_TIME_MODELS,
    ModelShape,
    kv_bytes_per_token,
    kv_capacity_tokens,
    step_time_model,
)

SMALL = STEP_TIME_MODELS["A100-8B"]
LARGE = STEP_TIME_MODELS["A100-70B"]
GIB = 1 << 30

CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
DECODE_8B = {
    1: (10.6, 10.6, 10.7, 10.7, 10.9, 11.2),
    8: (11.0, 11.3, 11.6, 12.3, 13.6, 16.3),
    32: (12.2, 13.2, 14.5, 17.2, 22.5, 33.1),
    64: (12.9, 14.9, 17.5, 22.8, 33.4, 54.7),
    128: (15.5, 19.5, 24.8, 35.4, 56.6, 99.1),
    256: (23.2, 31.1, 41.7, 63.0, 105, 190),
    512: (41.1, 57.0, 78.2, 121, 206, 375),
}
PREFILL_8B = {64: 11.7, 128: 14.0, 256: 20.8, 512: 36.4, 1024: 78.5, 2048: 153, 4096: 306, 8192: 669}
DECODE_70B = {
    (1, 512): 23.8, (8, 512): 25.5, (32, 512): 26.1, (64, 512): 32.3, (128, 512): 37.5, (256, 512): 55.7,
    (512, 512): 89.9, (128, 2048): 42.5, (256, 4096): 78.9, (512, 8192): 189,
}  # fmt: skip
PREFILL_70B = {512: 84, 1024: 147, 2048: 264, 4096: 488, 8192: 872}


def decode(model, batch, context):
    return model.step_ms(batch, batch * context)


def prefill(model, chunk, cached=0):
    return model.step_ms(chunk, 0, [(chunk, cached)])


@pytest.mark.parametrize(
    ("batch", "context", "small", "large"),
    [(1, 512, 10.245, 21.919), (64, 1024, 17.325, 30.222), (128, 4096, 57.495, 48.475), (512, 8192, 378.144, 180.930)],
)
def test_decode_exact(batch, context, small, large):
    assert round(decode(SMALL, batch, context), 3) == small
    assert round(decode(LARGE, batch, context), 3) == large


@pytest.mark.parametrize(
    ("chunk", "cached", "small", "large"),
    [
        (512, 0, 38.875, 76.219),
        (512, 4096, 48.271, 79.239),
        (2048, 6144, 204.986, 259.356),
        (8192, 0, 678.235, 927.733),
    ],
)
def test_prefill_exact(chunk, cached, small, large):
    assert round(prefill(SMALL, chunk, cached), 3) == small
    assert round(prefill(LARGE, chunk, cached), 3) == large


def errors(pairs):
    return [abs(got / want - 1) for got, want in pairs]


def test_decode_8b_agrees_with_the_profile():
    found = errors(
        (decode(SMALL, batch, context), ms)
        for batch, row in DECODE_8B.items()
        for context, ms in zip(CONTEXTS, row, strict=True)
    )
    assert max(found) <= 0.083 + 5e-4
    assert sum(found) / len(found) == pytest.approx(0.037, abs=5e-4)


def test_prefill_8b_agrees_with_the_profile():
    assert max(errors((prefill(SMALL, n), ms) for n, ms in PREFILL_8B.items())) <= 0.077 + 5e-4


def test_70b_agrees_with_the_profile():
    found = errors((decode(LARGE, *key), ms) for key, ms in DECODE_70B.items())
    assert max(found) <= 0.108 + 5e-4
    assert sum(found) / len(found) == pytest.approx(0.056, abs=1e-3)
    assert max(errors((prefill(LARGE, n), ms) for n, ms in PREFILL_70B.items())) <= 0.109 + 5e-4


def test_step_is_subadditive():
    assert round(SMALL.step_ms(64 + 512, 64 * 1024, [(512, 0)]), 1) == 48.3
    assert round(decode(SMALL, 64, 1024) + prefill(SMALL, 512), 1) == 56.2
    assert round(LARGE.step_ms(64 + 512, 64 * 1024, [(512, 0)]), 1) == 84.6
    assert round(decode(LARGE, 64, 1024) + prefill(LARGE, 512), 1) == 106.4


@pytest.mark.parametrize("model", [SMALL, LARGE])
def test_chunks_add_up_and_overhead_is_added_once(model):
    base = model.step_ms(100, 0)
    one = model.step_ms(100, 0, [(60, 10)]) - base
    two = model.step_ms(100, 0, [(40, 500)]) - base
    assert model.step_ms(100, 0, [(60, 10), (40, 500)]) == pytest.approx(base + one + two, rel=1e-12)
    assert model.overhead_ms == 0.0
    assert model.with_overhead(2.5).step_ms(100, 0) == pytest.approx(base + 2.5, rel=1e-12)


def test_named_models():
    assert step_time_model("A100-8B").overhead_ms == 2.5
    assert step_time_model("A100-70B", overhead_ms=0.0) == LARGE
    with pytest.raises(ValueError, match=r"must be one of A100-8B, A100-70B, found 'H100'"):
        step_time_model("H100")
    with pytest.raises(ValueError, match="overhead_ms must be at least 0"):
        step_time_model("A100-8B", -1)


def test_kv_bytes_per_token():
    assert kv_bytes_per_token(LLAMA_3_8B) == 131_072
    assert kv_bytes_per_token(LLAMA_3_70B) == 327_680
    assert kv_bytes_per_token(LLAMA_3_70B, tensor=8) == 40_960
    assert kv_bytes_per_token(LLAMA_3_70B, tensor=16) == 40_960
    assert kv_bytes_per_token(LLAMA_3_70B, tensor=4, pipeline=2) == 40_960


def test_capacity_of_an_a100():
    visible = int(79.2 * GIB)
    assert 435_000 <= kv_capacity_tokens(LLAMA_3_8B, visible) <= 450_000
    assert 1_380_000 <= kv_capacity_tokens(LLAMA_3_70B, visible, tensor=8) <= 1_430_000
    exact = ModelShape(32, 8, 128, 16_000_000_000)
    assert kv_capacity_tokens(exact, 72_000_000_000, utilization=1.0, activation_bytes=0) == 427_216


def test_capacity_matches_a_vllm_log():
    # 3.81 GiB left for KV were 1,952 blocks of 16 tokens in the log; 3.8125 GiB is what 1,952 blocks take.
    free = ModelShape(32, 8, 128, 0)
    assert kv_capacity_tokens(free, 1952 * 16 * 131_072, utilization=1.0, activation_bytes=0) == (1952 - 1) * 16


def test_capacity_errors():
    with pytest.raises(ValueError, match="must leave room for KV"):
        kv_capacity_tokens(LLAMA_3_70B, 80 * GIB)
    with pytest.raises(ValueError, match="utilization must be at most 1"):
        kv_capacity_tokens(LLAMA_3_8B, 80 * GIB, utilization=90)
