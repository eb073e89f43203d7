"""What a trained predictor of output lengths is, and the one that ships: linear in hashed tokens."""

import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

MAX_WEIGHTS_BYTES: Final = 256 * 2**20
MAX_TOKENS: Final = 4096
"""Of a prompt are looked at: turning a list into an array holds the interpreter's lock, some 50 ns a token."""
PAUSE_SECONDS: Final = 200e-6
"""Between prompts the engine's thread may have the interpreter's lock. Without a pause it waits up to 5 ms for it, in
every step: a model kept busy made 22 ms steps a quarter longer (bench/vllm_schedule.py predictor)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is known of a request before it runs; `token_ids` is None where the engine only has embeddings."""

    traffic_class: str
    prompt_tokens: int
    token_ids: Sequence[int] | None


class LengthModel(Protocol):
    """A model that somebody trained. Called in a thread of its own; kernels that release the GIL keep steps short.

    A classifier of long and short answers with two representative lengths, such as the two proxies of one-bit SVF.
    """

    def predict(self, batch: Sequence[Prompt]) -> Sequence[float]:
        """Expected output lengths in tokens, one for each prompt, in order."""
        ...


class LinearTokenModel:
    """ln(output) = bias + slope·ln(1 + prompt) + the mean weight of the prompt's first tokens, hashed to the table.

    `pause` sleeps so many seconds and gives up the interpreter's lock for it.
    """

    def __init__(
        self, weights: np.ndarray, bias: float, slope: float, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all():
            raise ValueError("weights must be a non-empty row of finite numbers")
        self._weights = np.ascontiguousarray(weights, dtype=np.float32)
        self._bias = bias
        self._slope = slope
        self._pause = pause

    def predict(self, batch: Sequence[Prompt]) -> Sequence[float]:
        """See LengthModel."""
        logs = self._bias + self._slope * np.log1p([prompt.prompt_tokens for prompt in batch])
        size = len(self._weights)
        for index, prompt in enumerate(batch):
            if prompt.token_ids:
                tokens = np.asarray(prompt.token_ids[:MAX_TOKENS], dtype=np.int64)
                logs[index] += float(self._weights[tokens % size].mean())
                self._pause(PAUSE_SECONDS)
        lengths: list[float] = np.exp(np.clip(logs, 0.0, 20.0)).tolist()
        return lengths


def load_length_model(path: Path) -> LengthModel:
    """Read a LinearTokenModel: an .npz with `weights` (one row), `bias` and `slope`.

    Raises ValueError, naming the file and what is wrong with it, or OSError if it can't be read.
    """
    if path.stat().st_size > MAX_WEIGHTS_BYTES:
        raise ValueError(f"{path} is larger than {MAX_WEIGHTS_BYTES} bytes: give a smaller table")
    try:
        # allow_pickle stays off: a file of weights must not be able to run code.
        with np.load(path, allow_pickle=False) as file:
            return LinearTokenModel(file["weights"], float(file["bias"]), float(file["slope"]))
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is no length model ({error}): expected an .npz with weights, bias and slope"
        ) from error
