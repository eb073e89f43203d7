"""Cap, watermark and trims for the slots of a placement: what the operator sets, and what each cure costs."""

import math
from dataclasses import dataclass

from evenflow_cli.planning.placements import Group
from evenflow_cli.planning.subject import Subject, snapshot_of
from evenflow_contract.worker_config import Admission
from evenflow_model.congestion import eviction_free_rate, pulse_cycle_rate, safe_rate
from evenflow_model.severity import eviction_free_watermark, severity
from evenflow_model.trim import MAX_TIERS, RandomCap, TrimEffect, minimal_trims, random_cap, trim_effects
from evenflow_operator.api.enums import AdmissionUnit
from evenflow_operator.core.caps import TIER_WATERMARK, WIDE_WATERMARK, admission_for, starts_wide
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.placement.lengths import ENOUGH_REQUESTS
from evenflow_operator.core.placement.search import OK_BELOW
from evenflow_operator.core.placement.severity_cache import REFERENCE_WATERMARK

SAFE_DEVIATIONS = 3.0
"""Standard deviations of a random mix that a cap without evictions leaves room for (docs/theory.md §5)."""

LARGEST_TRIM = 0.1
"""Part of all tiers' tokens beyond which trimming is no trim any more."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One cure for synchronised lengths and what it comes to, on a server that always has requests waiting.

    `evictions` per completion that the lengths' rhythm causes; without any watermark the randomness of arrivals adds to
    it. `throughput` in completions per iteration relative to x*; `free_share` of KV memory is left free.
    """

    name: str
    evictions: float
    throughput: float
    free_share: float


@dataclass(frozen=True, slots=True)
class Trims:
    """What changing max_tokens of fixed tiers does. `joint` makes the gcd 1, `pairwise` every two coprime."""

    tiers: tuple[int, ...]
    joint: TrimEffect | None
    pairwise: TrimEffect | None
    random: RandomCap | None

    @property
    def cures(self) -> bool:
        return any(one is not None and one.after.value < OK_BELOW for one in (self.joint, self.pairwise))


@dataclass(frozen=True, slots=True)
class GroupAdmission:
    """`multiple` is the cap in multiples of x*, None without a cap; `watermark` tokens, inf where none is enough."""

    group: Group
    admission: Admission
    multiple: float | None
    wide: bool
    watermark: float
    safe_share: float
    """A static cap without evictions over x*, for classes in random order."""
    measures: tuple[Measure, ...]
    trims: Trims | None
    """None where severity is fine or lengths spread of themselves."""


def group_admission(subject: Subject, group: Group) -> GroupAdmission:
    outcome = admission_for(
        snapshot_of(subject.pool, PoolMemory()), subject.pool.spec, group.slots[0], None, group.figures
    )
    admission, kv = outcome.admission, group.kv_tokens
    multiple = admission.per_iteration
    if multiple is not None and admission.unit == AdmissionUnit.REQUESTS.value:
        multiple /= group.figures.rate
    needed = eviction_free_watermark(group.mix, kv)
    return GroupAdmission(
        group=group,
        admission=admission,
        multiple=multiple,
        wide=starts_wide(group.figures.severity),
        watermark=needed,
        safe_share=safe_rate(group.mix, kv, SAFE_DEVIATIONS) / group.token_rate,
        measures=_measures(group, needed),
        trims=_trims(subject, group),
    )


def enough_share(needed: float) -> float:
    """A finite watermark as it is shown everywhere: in tenths of a percent, rounded up, since less is not enough."""
    return math.ceil(round(1000 * needed, 6)) / 1000


def _measures(group: Group, needed: float) -> tuple[Measure, ...]:
    mix, kv = group.mix, group.kv_tokens
    pulse = pulse_cycle_rate(mix, kv) / eviction_free_rate(mix, kv)

    def with_watermark(name: str, tokens: float) -> Measure:
        judged = severity(mix, kv, tokens)
        return Measure(name, judged.value, pulse, tokens / kv)

    measures = [
        with_watermark("nothing", 0.0),
        with_watermark(f"watermark {TIER_WATERMARK:.0%}", TIER_WATERMARK * kv),
        with_watermark(f"watermark {WIDE_WATERMARK:.0%}", WIDE_WATERMARK * kv),
    ]
    if WIDE_WATERMARK * kv < needed < math.inf:
        share = enough_share(needed / kv)
        measures.append(Measure(f"watermark {share:.1%}", 0.0, pulse, share))
    measures.append(Measure(f"cap 1.0 x*, watermark {TIER_WATERMARK:.0%}", 0.0, 1.0, TIER_WATERMARK))
    return tuple(measures)


def _trims(subject: Subject, group: Group) -> Trims | None:
    if group.figures.severity < OK_BELOW:
        return None
    mix, kv = group.mix, group.kv_tokens
    watermark = REFERENCE_WATERMARK * kv
    lengths = tuple(mix.output_pmf()[0].tolist())
    if len(lengths) > MAX_TIERS:
        fixed = any(_is_fixed(subject, name) for name in group.classes)
        return Trims((), None, None, random_cap(mix, kv, watermark)) if fixed else None
    joint = pairwise = None
    if len(lengths) > 1:
        joint = _small(trim_effects(mix, kv, watermark)[0]) if mix.gcd() > 1 else None
        if minimal_trims(lengths, pairwise=True).total > 0:
            pairwise = _small(trim_effects(mix, kv, watermark, pairwise=True)[0])
    return Trims(lengths, joint, pairwise, random_cap(mix, kv, watermark))


def _is_fixed(subject: Subject, name: str) -> bool:
    seen = subject.observed.get(name)
    if seen is not None and seen.completed >= ENOUGH_REQUESTS:
        return len(seen.histogram) <= MAX_TIERS
    return any(entry.name == name and entry.output_spread_percent == 0 for entry in subject.classes)


def _small(effect: TrimEffect) -> TrimEffect | None:
    return effect if effect.total <= LARGEST_TRIM * (sum(effect.outputs) + effect.total) else None
