"""What to say about tier trims and random caps."""

from evenflow_cli.planning.admission import GroupAdmission, Trims
from evenflow_cli.planning.plan import PoolPlan
from evenflow_cli.planning.wording import Advice, kv_binds, memory_free
from evenflow_model.trim import RandomCap, TrimEffect
from evenflow_operator.core.placement.search import OK_BELOW

WORTH_SHARE = 0.3
"""Part of outputs that a random cap may take off before it isn't advised."""


def trims_advice(plan: PoolPlan) -> Advice:
    """About max_tokens of fixed tiers, for the slots with the highest severity."""
    if not kv_binds(plan) and plan.worst.group.figures.severity >= OK_BELOW:
        return Advice("trims", False, f"Nothing to trim: {memory_free(plan)}, so waves do no harm.")
    act, text = _trims_text(plan.worst)
    return Advice("trims", act, text)


def _trims_text(worst: GroupAdmission) -> tuple[bool, str]:
    if worst.group.figures.severity < OK_BELOW:
        return False, "Nothing to trim: the lengths don't finish in step."
    if worst.trims is None:
        return False, "Nothing to trim: none of the lengths is fixed; the cap and the watermark are what helps."
    parts = []
    trims = worst.trims
    best = next((one for one in (trims.joint, trims.pairwise) if one is not None and one.after.value < OK_BELOW), None)
    if best is not None:
        return (
            True,
            f"Trim {_outputs(trims, best)}: severity falls from {best.before.value:.2g} to {best.after.value:.2g}.",
        )
    tried = trims.joint or trims.pairwise
    if tried is not None:
        parts.append(
            f"Don't trim tiers: {_outputs(trims, tried)} would make the gcd 1 and leave severity at "
            f"{tried.after.value:.2g}; "
            f"at prompts of {worst.group.figures.mean_prompt:,.0f} tokens lengths have to differ by far more."
        )
    elif len(trims.tiers) == 1:
        parts.append("A single fixed length can't be trimmed into another rhythm.")
    elif trims.tiers:
        parts.append("Small trims change nothing: the tiers finish nearly in step all the same.")
    parts.append(_random(worst, trims.random))
    return False, " ".join(parts)


def _outputs(trims: Trims, effect: TrimEffect) -> str:
    changes = [
        f"{before} to {after}" for before, after in zip(trims.tiers, effect.outputs, strict=True) if before != after
    ]
    return ", ".join(changes)


def _random(worst: GroupAdmission, cap: RandomCap | None) -> str:
    loss = 1.0 if cap is None else 1 - cap.mean_output / worst.group.figures.mean_output
    if cap is None or loss > WORTH_SHARE:
        return "A random cap would have to take off too much; only the admission cap helps."
    return (
        f"What cures it at the source: draw max_tokens at random from the last {cap.width:.1%} of each length, which "
        f"costs {loss:.1%} of the tokens of requests that run into it (with the admission cap there is no need to)."
    )
