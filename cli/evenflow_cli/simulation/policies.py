"""The policies that can be compared, by the names they have on the command line."""

import math
from dataclasses import dataclass, replace
from typing import Final

from evenflow_contract.worker_config import Admission, Policy, Victim, WorkerConfig
from evenflow_operator.api.enums import AdmissionMode, AdmissionUnit, Mode, SchedulingPolicy
from evenflow_operator.api.enums import Victim as VictimName
from evenflow_operator.api.spec import AdmissionControl, LLMServingPoolSpec
from evenflow_operator.core.pods.config import base_config, slot_config

DEFAULT_AGING_SECONDS: Final = 30
STATIC_CAP_WATERMARK: Final = 0.01


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row of a comparison. With `operated` the operator's own code sets placement, caps and watermark in a loop.

    `aging_seconds` None is the pool's. `cap` is in multiples of M per iteration, `count_cap` in multiples of x*
    requests. `prompt_only` orders by prompt tokens times predicted output.
    """

    name: str
    policy: Policy = "FCFS"
    victim: Victim = "LeastProgress"
    aging_seconds: float | None = 0.0
    watermark: float = 0.0
    cap: float | None = None
    count_cap: float | None = None
    max_num_active_seqs: int | None = None
    prompt_only: bool = False
    operated: bool = False
    as_written: bool = False


_SVF: Final = Candidate("SVF", "SVF", "LargestVolume")
CANDIDATES: Final = {
    "stock": Candidate("stock"),
    "watermark": Candidate("watermark", watermark=0.05),
    # Largest-volume victims would be a handicap: under SJF they are the long prompts, and cost the most to recompute.
    "SJF": Candidate("SJF", "SJF"),
    "OneBitSVF": replace(_SVF, name="OneBitSVF", policy="OneBitSVF"),
    "SVF": _SVF,
    "evenflow": replace(_SVF, name="evenflow", aging_seconds=None, operated=True),
    "pool": replace(_SVF, name="pool", operated=True, as_written=True),
    "prompt-volume": replace(_SVF, name="prompt-volume", prompt_only=True),
}
_AGED: Final = replace(_SVF, aging_seconds=None, watermark=STATIC_CAP_WATERMARK)
HELP: Final = (
    "stock, watermark, SJF, OneBitSVF, SVF, evenflow, pool (as the file says), prompt-volume, watermark=SHARE, "
    "max-num-active-seqs=N, cap=MULTIPLE (SVF, aged, static volume cap), count-cap=MULTIPLE (FCFS, of x*)"
)


def candidate(text: str) -> Candidate:
    """The candidate of that name, or of a name and a value such as `watermark=0.1`. Raises ValueError."""
    name, given, value = text.partition("=")
    if not given:
        if name not in CANDIDATES:
            raise ValueError(f"found {text!r}; choose from {HELP}")
        return CANDIDATES[name]
    if name == "watermark":
        return replace(CANDIDATES["stock"], name=text, watermark=_number(text, value, 0.0, 0.9))
    if name == "max-num-active-seqs":
        number = _number(text, value, 1, 65_536)
        if not number.is_integer():
            raise ValueError(f"found {text!r}; the number of sequences must be whole")
        return replace(CANDIDATES["stock"], name=text, max_num_active_seqs=int(number))
    if name == "cap":
        return replace(_AGED, name=text, cap=_number(text, value, 1e-3, 1e3))
    if name == "count-cap":
        return replace(CANDIDATES["stock"], name=text, count_cap=_number(text, value, 1e-3, 1e3))
    raise ValueError(f"found {text!r}; choose from {HELP}")


def _number(text: str, value: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise ValueError(f"found {text!r}; the value must be a number from {low:g} to {high:g}")
    return number


def static_config(one: Candidate, spec: LLMServingPoolSpec, rate: float) -> WorkerConfig:
    """The worker config of a candidate that nobody operates; `rate` is x*, in requests per iteration."""
    admission = Admission("Off", "Volume", None, one.watermark)
    if one.cap is not None:
        admission = Admission("Limited", "Volume", one.cap, one.watermark)
    if one.count_cap is not None:
        admission = Admission("Limited", "Requests", one.count_cap * rate, one.watermark)
    scheduling = spec.scheduling.model_copy(
        update={"policy": SchedulingPolicy(one.policy), "victim": VictimName(one.victim)}
    )
    names = [entry.name for entry in spec.traffic_classes]
    base = base_config(spec.model_copy(update={"scheduling": scheduling}))
    config = slot_config(base, names, admission, draining=False)
    return config if one.aging_seconds is None else replace(config, aging_seconds=one.aging_seconds)


def operated_spec(one: Candidate, spec: LLMServingPoolSpec) -> LLMServingPoolSpec:
    """The spec that the operator works on: the pool's own, or with SVF, aging and Auto admission in volume."""
    if one.as_written:
        return spec
    scheduling = spec.scheduling.model_copy(
        update={
            "policy": SchedulingPolicy.SVF,
            "victim": VictimName.LARGEST_VOLUME,
            "aging_seconds": spec.scheduling.aging_seconds or DEFAULT_AGING_SECONDS,
        }
    )
    admission = AdmissionControl(
        mode=AdmissionMode.AUTO,
        unit=AdmissionUnit.VOLUME,
        watermark_percent=spec.admission.watermark_percent if spec.admission.mode is AdmissionMode.AUTO else None,
    )
    return spec.model_copy(update={"mode": Mode.ACTIVE, "scheduling": scheduling, "admission": admission})
