"""What generating text asks of a GPU: times of tokens, and memory for keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.results import Shown
from wavecast.steps.prediction import Prediction


@dataclass(frozen=True)
class TextGeneration(Shown):
    """A predicted step of text generation in the words of those who serve models."""

    step: Prediction
    decodes: bool
    """Whether the step makes one more token of each sequence; else it reads prompts."""
    sequences: int
    """The sequences of the step."""
    context: int
    """The tokens of each prompt, or of each sequence in the cache."""
    cache_bytes: int
    """Keys and values of these tokens, in bytes."""
    largest_batch: int | None = None
    """The most sequences of this length that fit. None when unknown."""

    @property
    def first_token_s(self) -> float | None:
        """The time from the prompt to the first token, in seconds. None while decoding."""
        return None if self.decodes else self.step.seconds

    @property
    def token_s(self) -> float | None:
        """The time between two tokens of a sequence, in seconds. None for prompts."""
        return self.step.seconds if self.decodes else None

    @property
    def tokens_per_s(self) -> float:
        """The tokens of all sequences, read or made in a second."""
        return self.sequences * (1 if self.decodes else self.context) / self.step.seconds
