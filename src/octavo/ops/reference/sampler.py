"""What the sampler means: one row at a time, in NumPy, by sorting the whole vocabulary.

float64 wherever the mathematics defines the result; float32 where a rounding decides which tokens are kept (the
processed logits, and min_p's comparison), so that both sides decide alike. What can differ from a kernel is a draw, or
the end of a top_p head, that falls within the kernel's rounding of a token's border: about 1e-5 of the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

LARGEST = np.float32(np.finfo(np.float32).max)
LEAST_LOGPROB = -9999.0
LEAST_TEMPERATURE = 1e-5  # that logits are divided by; below it the arg-max is taken


@dataclass(frozen=True, slots=True)
class Row:
    """How one row is sampled. With a `target` nothing is sampled and that token is reported."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    sequence: int = 0
    position: int = 0
    num_logprobs: int = -1
    target: int = -1
    allowed: npt.NDArray[np.bool_] | None = None
    bias: list[tuple[int, float]] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)  # every token of prompt and output -> count in the output

    @property
    def is_greedy(self) -> bool:
        return self.temperature < LEAST_TEMPERATURE or self.top_k == 1 or self.top_p <= 0.0 or self.min_p >= 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A row's outputs; logprob, rank and top only where asked for. `status` as SampleStatus in native/sampler.h."""

    token_id: int
    status: int = 0
    logprob: float = 0.0
    rank: int = 0
    top: list[tuple[int, float]] = field(default_factory=list)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011)."""
    c, k = counter, key
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        low = 0xFFFFFFFF
        c = ((b >> 32) ^ c[1] ^ k[0], b & low, (a >> 32) ^ c[3] ^ k[1], a & low)
        k = ((k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low)
    return c


def uniform(seed: int, sequence: int, position: int) -> float:
    """The random number of one output token, in [0, 1), with 53 bits."""
    low = 0xFFFFFFFF
    words = philox((position & low, position >> 32, sequence, 0), (seed & low, seed >> 32))
    return float((words[0] << 32 | words[1]) >> 11) * 2.0**-53


def clean(x: Floats) -> Floats:
    """NaN counts as -inf, +inf as the largest float."""
    return np.minimum(np.where(np.isnan(x), np.float32(-np.inf), x), LARGEST).astype(np.float32)


def order(x: Floats) -> npt.NDArray[np.int64]:
    """Ids by falling logit, ties by rising id."""
    return np.argsort(-x, kind="stable")


def process(logits: Floats, row: Row) -> Floats:
    """Mask, then biases, then penalties, in float32, as vLLM orders them."""
    y = clean(logits)
    if row.allowed is not None:
        y = np.where(row.allowed, y, np.float32(-np.inf))
    with np.errstate(over="ignore"):
        for token, value in row.bias:
            y[token] = clean(y[token] + np.float32(value))
        for token, count in row.counts.items():
            penalty = np.float32(row.repetition_penalty)
            y[token] = clean(y[token] / penalty if y[token] > 0 else y[token] * penalty)
            if count:
                charge = np.float32(row.frequency_penalty) * np.float32(count)
                y[token] = clean(y[token] - charge - np.float32(row.presence_penalty))
    return y


def probabilities(y: Floats, row: Row, shift: float = 0.0) -> npt.NDArray[np.float64]:
    """What a token is drawn from: softmax of y / temperature over what min_p, top_k and top_p keep, in that order.

    `shift` is added to top_p's target: a test asks with a small one what a rounding could have changed.
    """
    ids = order(y)
    with np.errstate(over="ignore"):
        scaled = (y - y.max()) * (np.float32(1.0) / np.float32(row.temperature))
    kept = y[ids] > -np.inf
    if row.min_p > 0.0:
        kept &= scaled[ids] >= np.float32(math.log(np.float32(row.min_p)))
    if 0 < row.top_k < len(y):
        kept[row.top_k :] = False
    weights = np.exp(scaled.astype(np.float64))
    if row.top_p < 1.0:
        head = np.cumsum(np.where(kept, weights[ids], 0.0))
        target = (float(np.float32(row.top_p)) + shift) * head[-1]
        kept[int(np.searchsorted(head, target)) + 1 :] = False
    result = np.zeros(len(y))
    result[ids[kept]] = weights[ids[kept]]
    result /= result.sum()
    return result


def draw(chances: npt.NDArray[np.float64], u: float) -> int:
    """The first id whose running sum of probabilities, by rising id, passes u."""
    return min(int(np.searchsorted(np.cumsum(chances), u, side="right")), int(np.flatnonzero(chances)[-1]))


def logprobs(logits: Floats) -> npt.NDArray[np.float64]:
    """Natural log-probabilities of the model's own logits; never below LEAST_LOGPROB, so that JSON can hold each."""
    x = clean(logits).astype(np.float64)
    if x.max() == -np.inf:
        return np.full(len(x), LEAST_LOGPROB)
    shifted: npt.NDArray[np.float64] = x - x.max()
    shifted -= np.log(np.exp(shifted).sum())
    return np.maximum(shifted, LEAST_LOGPROB)


def sample(logits: Floats, row: Row) -> Sample:
    """Everything that one row of logits [vocab] yields."""
    status, token = 0, row.target
    if token < 0:
        y = process(logits, row)
        if y.max() == -np.inf:
            status, token = 2, 0
        elif row.is_greedy:
            token = int(np.argmax(y))
        else:
            token = draw(probabilities(y, row), uniform(row.seed, row.sequence, row.position))
    reports = row.target >= 0 or row.num_logprobs >= 0
    if (reports or status) and clean(logits).max() == -np.inf:
        status = 1
    if not reports:
        return Sample(token, status)
    ids, values = order(clean(logits)), logprobs(logits)
    top = [(int(i), float(values[i])) for i in ids[: max(row.num_logprobs, 0)]]
    return Sample(token, status, float(values[token]), int(np.flatnonzero(ids == token)[0]) + 1, top)
