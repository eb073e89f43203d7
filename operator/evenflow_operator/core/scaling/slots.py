"""What the autoscaler looks at, gathered from the situation: each slot that stays, its engine and what it does."""

from collections.abc import Mapping, Sequence

from evenflow_model.steptime import step_time_model
from evenflow_operator.api.enums import EngineType, StepTimeModel
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.core.placement.severity_cache import MixFigures
from evenflow_operator.core.readings.facts import counters_of, finite, fresh_reading, usable_kv_tokens
from evenflow_operator.core.scaling.engine import Engine
from evenflow_operator.core.scaling.load import SlotUse
from evenflow_operator.core.scaling.samples import usages, window_seconds
from evenflow_operator.core.scaling.state import Sample
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import PodView, Snapshot


def slot_uses(
    situation: Situation,
    classes: Mapping[int, tuple[str, ...]],
    figures: Mapping[int, MixFigures],
    history: Mapping[str, Sequence[Sample]],
) -> list[SlotUse]:
    """`figures`: of the slots that stay; `classes`: what each serves; `history`: samples by pod uid."""
    snapshot, spec = situation.snapshot, situation.spec
    stale_after, interval = spec.metrics.stale_after_seconds, spec.metrics.interval_seconds
    known = usages(history, situation.now, stale_after, interval)
    engines: dict[tuple[MixFigures, int], Engine] = {}
    uses = []
    for slot, names in sorted(classes.items()):
        pod, mix = situation.filling.get(slot), figures.get(slot)
        serving = pod is not None and situation.available(pod)
        usage = known.get(pod.uid) if pod is not None and serving else None
        reading = None if pod is None else snapshot.readings.get(pod.uid)
        fresh = None if pod is None else fresh_reading(snapshot, pod, stale_after)
        kv_tokens = usable_kv_tokens(reading, spec.engine.kv_cache_tokens)
        engine = None if mix is None else engines.get((mix, kv_tokens))
        if mix is not None and engine is None:
            engine = engines[mix, kv_tokens] = _engine(spec, mix, kv_tokens)
        uses.append(
            SlotUse(
                slot=slot,
                classes=frozenset(names),
                engine=engine,
                max_seqs=spec.engine.max_num_seqs,
                serving=serving and (usage is not None or not _new(snapshot, pod, interval)),
                usage=usage,
                kv_peak=finite(counters_of(fresh).kv_peak_ratio),
            )
        )
    return uses


def nominal_calibration(spec: LLMServingPoolSpec) -> float:
    """Wall seconds per second of the step-time model, until they are measured."""
    return 1.0 / spec.engine.simulated.time_scale if spec.engine.type is EngineType.SIMULATED else 1.0


def _new(snapshot: Snapshot, pod: PodView | None, interval: float) -> bool:
    """Too short in service to have been sampled twice: that says nothing against its metrics."""
    since = None if pod is None else pod.ready_since
    return since is not None and snapshot.now - since < window_seconds(interval)


def _engine(spec: LLMServingPoolSpec, mix: MixFigures, kv_tokens: int) -> Engine:
    engine = spec.engine
    # Only the shape of the curve matters: its scale is measured.
    name = engine.simulated.step_time_model
    if engine.type is EngineType.VLLM:
        name = StepTimeModel.A100_8B if spec.accelerator.parallelism.gpus == 1 else StepTimeModel.A100_70B
    return Engine(
        mean_prompt=mix.mean_prompt,
        mean_output=mix.mean_output,
        mean_volume=mix.mean_volume,
        chunk_source=mix.mean_prompt,
        kv_tokens=kv_tokens,
        step_budget=engine.max_num_batched_tokens,
        max_seqs=engine.max_num_seqs,
        model=step_time_model(name.value),
    )
