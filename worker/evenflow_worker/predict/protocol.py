"""What a predictor of output lengths is."""

from typing import Protocol


class Predictor(Protocol):
    """Predicts output lengths and learns from completions. Neither call may block."""

    def predict(self, traffic_class: str, prompt_tokens: int) -> float:
        """Expected output length in tokens, positive and finite."""
        ...

    def observe(self, traffic_class: str, prompt_tokens: int, output_tokens: int) -> None:
        """One request completed: its true lengths in tokens."""
        ...
