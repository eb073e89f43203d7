"""What to say about the admission cap and the watermark."""

import math

from evenflow_cli.planning.admission import GroupAdmission, enough_share
from evenflow_cli.planning.plan import PoolPlan
from evenflow_cli.planning.wording import Advice, kv_binds, memory_free
from evenflow_operator.api.enums import AdmissionMode, AdmissionUnit, SchedulingPolicy
from evenflow_operator.core.caps import (
    ACT_ABOVE,
    LOOSE_START,
    LOOSEST,
    TIER_WATERMARK,
    TIGHT_START,
    TIGHTEST,
    WIDE_WATERMARK,
)
from evenflow_operator.core.placement.search import OK_BELOW

TOO_LOOSE = 1.2
"""A fixed cap so many times x* lets the waves of tiers through."""
TOO_TIGHT = 1.0
"""A fixed cap below so many times x* under-fills the memory of wide lengths."""


def admission_advice(plan: PoolPlan) -> Advice:
    """About the cap."""
    spec, worst = plan.subject.pool.spec, plan.worst
    if spec.admission.unit is AdmissionUnit.REQUESTS and spec.scheduling.policy is not SchedulingPolicy.FCFS:
        text = (
            "Set spec.admission.unit to Volume: a cap that counts requests makes small ones wait for large ones, which "
            f"costs more than it gives under {spec.scheduling.policy.value}."
        )
        return Advice("admission", spec.admission.mode is not AdmissionMode.OFF, text)
    if not kv_binds(plan):
        return Advice("admission", False, f"Nothing to do: {memory_free(plan)}, so a cap has nothing to hold back.")
    if spec.admission.mode is AdmissionMode.AUTO:
        return _auto(worst)
    if worst.multiple is None:
        return _uncapped(worst)
    return _fixed(worst, worst.multiple)


def _auto(worst: GroupAdmission) -> Advice:
    start, x = worst.multiple or LOOSE_START, worst.group.figures.rate
    bounds = f"evictions then move it between {TIGHTEST:g} and {LOOSEST:g} x*"
    if start >= LOOSE_START:
        why = "a cap near x* would leave memory unused"
        text = (
            f"Nothing to do: mode Auto starts the cap loose, at {start:.2g} x* (x* = {x:.3g} requests per "
            f"iteration), since {why}; {bounds}."
        )
        return Advice("admission", False, text)
    text = (
        f"Keep mode Auto: it starts the cap at {start:.2f} x* (x* = {x:.3g} requests per iteration), "
        "because severity is "
        f"{worst.group.figures.severity:.2g}; {bounds}. {_uncured(worst)}"
    )
    return Advice("admission", False, text)


def _uncapped(worst: GroupAdmission) -> Advice:
    if worst.group.figures.severity < OK_BELOW:
        return Advice("admission", False, "Nothing to do: without a cap (mode Off) these lengths cause no waves.")
    return Advice("admission", True, f"Set spec.admission.mode to Auto. {_uncured(worst)}")


def _fixed(worst: GroupAdmission, multiple: float) -> Advice:
    severity, found = worst.group.figures.severity, f"The fixed cap is {multiple:.2g} x*"
    if severity > ACT_ABOVE and multiple > TOO_LOOSE:
        return Advice(
            "admission", True, f"{found}, too loose: lower capMicro to x*, or use mode Auto. {_uncured(worst)}"
        )
    if severity < OK_BELOW and multiple < TOO_TIGHT:
        text = (
            f"{found} and these lengths cause no waves: below x* it leaves memory unused. Raise it to "
            f"{LOOSE_START:g} x*, or use mode Auto."
        )
        return Advice("admission", True, text)
    reason = "about x*, which ends the waves" if severity > ACT_ABOVE else "loose enough to cost nothing"
    if OK_BELOW <= severity <= ACT_ABOVE:
        reason = f"with severity {severity:.2g} anything from {TIGHT_START:g} to {LOOSEST:g} x* will do"
    return Advice("admission", False, f"Nothing to do: {found[0].lower()}{found[1:]}, {reason}.")


def _uncured(worst: GroupAdmission) -> str:
    nothing = worst.measures[0]
    prompt = worst.group.figures.mean_prompt
    return (
        f"Without a cap and a watermark expect at least {100 * nothing.evictions:.2g} evictions per 100 "
        "completions, each of which "
        f"prefills some {prompt:,.0f} tokens again."
    )


def watermark_advice(plan: PoolPlan) -> Advice:
    """About the watermark."""
    spec, worst = plan.subject.pool.spec.admission, plan.worst
    share, needed = worst.admission.watermark, worst.watermark / worst.group.kv_tokens
    given = (
        "as spec.admission.watermarkPercent says"
        if spec.watermark_percent is not None
        else f"set by mode {spec.mode.value}"
    )
    if not kv_binds(plan):
        return Advice("watermark", False, f"Nothing to do ({share:.0%}, {given}): {memory_free(plan)}.")
    if share > 2 * WIDE_WATERMARK and share > 1.5 * needed:
        text = (
            f"Lower watermarkPercent: {share:.0%} of memory stays unused; {WIDE_WATERMARK:.0%} is enough, or "
            "leave it to mode Auto."
        )
        return Advice("watermark", True, text)
    if worst.group.figures.severity < OK_BELOW:
        if share > 0:
            text = (
                f"Nothing to do: {share:.0%}, {given}, keeps requests that were just admitted from being "
                f"evicted, at the price of {share:.0%} of memory."
            )
            return Advice("watermark", False, text)
        text = (
            f"Use mode Auto, or set watermarkPercent to {100 * WIDE_WATERMARK:.0f}: without one, requests "
            "that were just admitted are evicted now and then."
        )
        return Advice("watermark", True, text)
    if share == 0:
        text = (
            f"Use mode Auto, or set watermarkPercent to {100 * TIER_WATERMARK:.0f} beside a cap near x*. "
            f"{_watermark_alone(worst, needed)}"
        )
        return Advice("watermark", True, text)
    text = f"Nothing to do: {share:.0%}, {given}. {_watermark_alone(worst, needed)}"
    return Advice("watermark", False, text)


def _watermark_alone(worst: GroupAdmission, needed: float) -> str:
    if math.isinf(needed):
        return "No watermark alone could end the waves; the cap does."
    if needed <= WIDE_WATERMARK:
        return f"A watermark of {enough_share(needed):.1%} would end the waves without any cap."
    throughput = worst.measures[0].throughput
    cost = f" and still complete only {throughput:.0%} of what x* does" if throughput < 0.99 else ""
    return (
        f"To end the waves without a cap it would have to leave {enough_share(needed):.1%} of memory free{cost}; "
        "the cap is cheaper."
    )
