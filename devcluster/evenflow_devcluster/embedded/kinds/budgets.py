"""PodDisruptionBudgets: what the controller that counts and the eviction that spends agree on."""

from collections.abc import Iterator
from datetime import timedelta

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.kinds.strategy import Strategy

BUDGETS = "poddisruptionbudgets.policy"
DISRUPTION_TIMEOUT = timedelta(minutes=2)
"""An evicted pod that isn't gone after this counts again."""


class DisruptionBudgetStrategy(Strategy):
    def validate(self, obj: Object) -> Iterator[FieldError]:
        spec = obj.get("spec") or {}
        if "minAvailable" in spec and "maxUnavailable" in spec:
            yield FieldError("spec", "minAvailable and maxUnavailable cannot be both set", value=spec)
