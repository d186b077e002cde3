"""Beam searches whose results are recorded, on the checkpoints of tiny.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import tiny

PROMPT_LENGTHS = (17, 100)  # within a window, and over three


@dataclass(frozen=True)
class Case:
    """`num_stops` of the vocabulary end a beam: the one EOS of random weights is hardly ever among the best."""

    num_beams: int
    max_new_tokens: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_stops: int = 0


CASES = (
    Case(4, 24),
    Case(4, 40, num_stops=8),
    Case(4, 40, early_stopping=True, num_stops=8),
    Case(4, 40, early_stopping="never", num_stops=8),
    Case(3, 40, length_penalty=0.0, num_stops=16),
    Case(5, 40, length_penalty=2.0, early_stopping="never", num_stops=4),
    Case(2, 30, length_penalty=-1.0, num_stops=20),
    Case(8, 20, length_penalty=0.6, early_stopping=True, num_stops=30),
    Case(1, 24, num_stops=4),
)


def prompt(name: str, length: int) -> list[int]:
    return tiny.prompt(name)[:length]


def stops(name: str, case: Case) -> list[int]:
    """The ids that end a beam: of bytes only, which prompts are made of too."""
    ids = np.random.RandomState(tiny.seed_of(name) + 2).permutation(256)
    return sorted(int(i) for i in ids[: case.num_stops])
