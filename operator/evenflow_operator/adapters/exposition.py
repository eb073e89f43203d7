"""The few series that the operator needs, out of a Prometheus text exposition.

Only lines whose name is wanted are looked at: a vLLM page has thousands of others. A value that can't be read counts
as NaN, so that it shows.
"""

import math

from evenflow_contract import metrics
from evenflow_operator.adapters.series import FIELDS, SeriesSums

_PREFIXES = ("vllm:", metrics.PREFIX)
_RESUMED = f'{metrics.LABEL_KIND}="{metrics.KIND_RESUMED}"'


def read_page(text: str, sums: SeriesSums, peak_window: str) -> None:
    """Add a page's series to `sums`; of the KV peaks only the one of `peak_window` (`10s`)."""
    window = f'{metrics.LABEL_WINDOW}="{peak_window}"'
    for line in text.split("\n"):
        if not line.startswith(_PREFIXES):
            continue
        brace, close = line.find("{"), line.rfind("}")
        if 0 <= brace < close:
            name, labels, rest = line[:brace], line[brace + 1 : close], line[close + 1 :]
        else:
            name, _, rest = line.partition(" ")
            labels = ""
        if name not in FIELDS:
            continue
        # Evictions per admission: a resumed request was admitted before and must not dilute the rate.
        if name == metrics.ADMITTED_REQUESTS and _RESUMED in labels:
            continue
        if name == metrics.KV_USAGE_PEAK_RATIO and window not in labels:
            continue
        sums.add(name, _value(rest))


def _value(rest: str) -> float:
    try:
        return float(rest.split(None, 1)[0])
    except (ValueError, IndexError):
        return math.nan
