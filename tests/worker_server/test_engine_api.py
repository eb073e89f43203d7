"""The simulated engine over HTTP."""

import asyncio
import json
import math

import pytest

from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_worker.simulated.openai import MAX_BODY_BYTES, TOKEN_TEXT


def text_of(events, key="text"):
    """Per choice: the text of a stream, and its finish reasons."""
    texts: dict[int, str] = {}
    reasons: dict[int, list[str]] = {}
    for event in events:
        for choice in event["choices"]:
            piece = choice["text"] if key == "text" else choice["delta"].get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
            if choice["finish_reason"] is not None:
                reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    return texts, reasons


async def test_models_health_and_version(start_engine):
    client = await start_engine(served_model_names=("llama-8b", "alias"), max_model_len=4096)
    models = json.loads(await client.text(client.url("/v1/models")))["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [("llama-8b", 4096), ("alias", 4096)]
    assert await client.text(client.url("/health")) == ""
    assert json.loads(await client.text(client.url("/version")))["version"]
    answer = await client.complete(max_tokens=2)
    assert answer["model"] == "llama-8b"
    assert (await client.complete(model="alias", max_tokens=2))["model"] == "alias"


async def test_a_completion(start_engine):
    client = await start_engine()
    answer = await client.complete(prompt=[1, 2, 3], vllm_xargs={"simulated_output_tokens": 7})
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == TOKEN_TEXT * 7
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    assert "evenflow" not in answer


async def test_where_an_output_stops(start_engine):
    client = await start_engine()
    hidden = {"simulated_output_tokens": 50}
    cut = await client.complete(max_tokens=9, vllm_xargs=hidden)
    assert (cut["usage"]["completion_tokens"], cut["choices"][0]["finish_reason"]) == (9, "length")
    ignored = await client.complete(max_tokens=80, ignore_eos=True, vllm_xargs=hidden)
    assert (ignored["usage"]["completion_tokens"], ignored["choices"][0]["finish_reason"]) == (80, "length")
    longer = await client.complete(min_tokens=60, vllm_xargs=hidden)
    assert (longer["usage"]["completion_tokens"], longer["choices"][0]["finish_reason"]) == (60, "stop")


async def test_drawn_lengths_follow_the_prior_and_the_seed(start_engine, config_document):
    async def draw(seed):
        client = await start_engine(seed=seed)
        prior = {"chat": {"promptTokens": 10, "outputTokens": 40}}
        await client.push(config_document(1, classPriors=prior))
        answers = await client.complete({"x-traffic-class": "chat"}, n=200)
        return answers["usage"]["completion_tokens"]

    first = await draw(1)
    assert 0.8 * 8000 < first < 1.25 * 8000
    assert await draw(1) == first
    assert await draw(2) != first


async def test_chat(start_engine):
    client = await start_engine()
    body = {"messages": [{"role": "user", "content": "12345678"}], "max_completion_tokens": 5, "ignore_eos": True}
    status, answer = await client.post("/v1/chat/completions", body)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == TOKEN_TEXT * 5
    assert answer["usage"]["prompt_tokens"] == 6


async def test_many_choices_of_many_prompts(start_engine):
    client = await start_engine()
    answer = await client.complete(prompt=["x" * 8, [1, 2, 3]], n=2, max_tokens=4, ignore_eos=True)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}


async def test_a_stream_of_completions(start_engine):
    client = await start_engine(stream_interval=4)
    body = {"prompt": "x", "n": 2, "vllm_xargs": {"simulated_output_tokens": 10}}
    events = await client.stream("/v1/completions", body)
    texts, reasons = text_of(events)
    assert texts == {0: TOKEN_TEXT * 10, 1: TOKEN_TEXT * 10}
    assert reasons == {0: ["stop"], 1: ["stop"]}
    assert len({event["id"] for event in events}) == 1
    assert all("usage" not in event for event in events)


async def test_a_stream_of_chat_with_usage_and_timings(start_engine):
    client = await start_engine()
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 6,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    events = await client.stream("/v1/chat/completions", body, {"x-evenflow-timings": "true"})
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    texts, reasons = text_of(events, "content")
    assert texts == {0: TOKEN_TEXT * 6}
    assert reasons == {0: ["length"]}
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 6
    timings = events[-1]["evenflow"]
    assert 0 <= timings["queue_s"] < timings["ttft_s"] < timings["latency_s"]


async def test_timings_are_engine_time(start_engine):
    client = await start_engine()
    answer = await client.complete({"x-evenflow-timings": "true"}, max_tokens=100, ignore_eos=True)
    timings = answer["evenflow"]
    # 100 steps of 10.2 ms and 2.5 ms overhead, whatever the wall says.
    assert 1.2 < timings["latency_s"] < 2.0
    assert timings["evictions"] == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "numbers"),
    [
        ("/v1/completions", {"prompt": "x", "model": "other"}, 404, ["other"]),
        ("/v1/completions", {"prompt": "x" * 400, "max_tokens": 950}, 400, ["1000", "950", "100"]),
        ("/v1/completions", {"prompt": "x" * 4000}, 400, ["1000"]),
        ("/v1/completions", {"prompt": "x" * 400, "max_tokens": 600}, 400, ["700", "640"]),
        ("/v1/completions", {"prompt": "x" * 3000}, 400, ["751", "640"]),
        ("/v1/chat/completions", {"messages": []}, 400, ["messages"]),
        ("/v1/completions", b"{", 400, ["JSON"]),
        ("/v1/nothing", {}, 404, ["/v1/nothing"]),
        ("/v1/models", {}, 405, ["POST"]),
    ],
)
async def test_errors(start_engine, path, body, status, numbers):
    client = await start_engine(kv_tokens=640, max_model_len=1000)
    found, answer = await client.post(path, body)
    assert found == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["code"] == status
    for number in numbers:
        assert number in answer["error"]["message"]
    assert not client.engine.runner.core.has_work


async def test_a_list_is_refused_whole(start_engine):
    client = await start_engine(kv_tokens=640, max_model_len=1000)
    status, _ = await client.post("/v1/completions", {"prompt": ["x", "x" * 3000]})
    assert status == 400
    assert client.engine.runner.in_flight == 0
    assert not client.engine.runner.core.has_work


async def test_without_max_tokens_an_answer_gets_what_is_left(start_engine):
    client = await start_engine(kv_tokens=640, max_model_len=1000)
    answer = await client.complete(prompt="x" * 400, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 640


async def test_bodies_are_bounded_and_large_prompts_pass(start_engine):
    client = await start_engine()
    answer = await client.complete(prompt=[128_000] * 65_536, max_tokens=2, ignore_eos=True)
    assert answer["usage"]["prompt_tokens"] == 65_536
    status, answer = await client.post("/v1/completions", b" " * (MAX_BODY_BYTES + 1))
    assert status == 413
    assert str(MAX_BODY_BYTES) in answer["error"]["message"]


async def test_the_queue_is_bounded(start_engine, eventually):
    client = await start_engine(max_num_seqs=1, max_num_queued=2, time_scale=0.01)
    waiting = [asyncio.create_task(client.complete(max_tokens=10)) for _ in range(3)]
    core = client.engine.runner.core
    await eventually(lambda: core.running + core.waiting >= 1)
    await eventually(lambda: client.engine.runner.in_flight >= 2)
    statuses = [(await client.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "n": 4}))[0]]
    assert statuses == [503]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await eventually(lambda: not core.has_work)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_memory(start_engine, eventually, stream):
    client = await start_engine(time_scale=0.5)
    body = {"prompt": "x" * 4096, "n": 3, "stream": stream, "max_tokens": 10_000, "ignore_eos": True}
    core = client.engine.runner.core

    async def ask():
        async with client.session.post(client.url("/v1/completions"), json=body) as response:
            await response.read()

    task = asyncio.create_task(ask())
    await eventually(lambda: core.running == 3 and core.kv_usage > 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: not core.has_work)
    assert core.kv_usage == 0
    assert client.engine.runner.in_flight == 0
    assert core.counters.aborted == 3


async def test_classes_by_both_carriers(start_engine, config_document):
    client = await start_engine()
    assert (await client.push(config_document(1)))[0] == 200
    body = {"max_tokens": 3, "ignore_eos": True}
    await client.complete({"x-traffic-class": "code"}, **body)
    await client.complete(**body, vllm_xargs={"traffic_class": "chat"})
    await client.complete({"x-traffic-class": "code"}, **body, vllm_xargs={"traffic_class": "chat"})
    await client.complete({"x-traffic-class": "nobody"}, **body)
    lengths = WorkerLengths.parse(await client.text(client.admin_url("/evenflow/v1/lengths")))
    assert {name: entry.completed for name, entry in lengths.classes.items()} == {"code": 2, "chat": 1, "default": 1}
    assert lengths.classes["code"].outputs.keys() == {3}
    state = WorkerState.parse(await client.text(client.admin_url("/evenflow/v1/state")))
    assert state.applied_generation == 1
    assert dict(state.in_flight) == {"chat": 0, "code": 0, "default": 0}
    metrics = await client.text(client.admin_url("/metrics"))
    assert "evenflow_misrouted_requests_total 1.0" in metrics
    assert "nobody" not in metrics


async def test_misrouted_requests_are_served_and_the_connection_closed(start_engine, config_document):
    client = await start_engine()

    async def connection(traffic_class, *, stream=False):
        body = {"prompt": "x", "max_tokens": 2, "stream": stream}
        headers = {"x-traffic-class": traffic_class}
        async with client.session.post(client.url("/v1/completions"), json=body, headers=headers) as response:
            assert response.status == 200
            await response.read()
            return response.headers.get("Connection", "keep-alive").lower()

    assert await connection("nobody") == "keep-alive"
    await client.push(config_document(1))
    assert await connection("chat") == "keep-alive"
    assert await connection("nobody") == "close"
    assert await connection("nobody", stream=True) == "close"
    await client.push(config_document(2, draining=True))
    assert await connection("chat") == "close"
    assert await connection("chat", stream=True) == "close"
    assert "evenflow_misrouted_requests_total 4.0" in await client.text(client.admin_url("/metrics"))


async def test_the_config_file_is_read_at_start_and_watched(start_engine, config_document, tmp_path, eventually):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_document(4)))
    client = await start_engine()
    settings = client.engine.runner.settings
    assert settings.config.generation == 4
    assert client.engine.runner.core.config == settings.config
    assert (await client.push(config_document(4, policy="FCFS")))[0] == 409
    path.write_text(json.dumps(config_document(5, policy="FCFS")))
    await eventually(lambda: settings.config.generation == 5)
    path.write_text("{}")
    await eventually(lambda: settings.refused_total == 1)
    assert client.engine.runner.core.config.policy == "FCFS"
    state = WorkerState.parse(await client.text(client.admin_url("/evenflow/v1/state")))
    assert (state.applied_generation, state.policy, state.config_hash) == (5, "FCFS", settings.config_hash)


async def test_evictions_are_reported_where_they_belong(start_engine, config_document):
    client = await start_engine(kv_tokens=1024, max_num_seqs=8)
    off = {"mode": "Off", "unit": "Volume", "watermark": 0}
    await client.push(config_document(1, admission=off, policy="FCFS"))
    body = {"n": 8, "max_tokens": 300, "ignore_eos": True}
    answer = await client.complete({"x-traffic-class": "chat", "x-evenflow-timings": "true"}, **body)
    evictions = client.engine.runner.core.counters.evictions["chat"]
    assert evictions > 0
    assert answer["evenflow"]["evictions"] == evictions
    metrics = await client.text(client.admin_url("/metrics"))
    assert f'evenflow_evictions_total{{traffic_class="chat"}} {float(evictions)}' in metrics
    vllm = await client.text(client.url("/metrics"))
    assert f'vllm:num_preemptions_total{{engine="0",model_name="simulated"}} {float(evictions)}' in vllm
    peak = next(line for line in metrics.splitlines() if line.startswith('evenflow_kv_usage_peak_ratio{window="60s"}'))
    assert math.isclose(float(peak.split()[-1]), 1.0, abs_tol=0.05)
