"""What is measured: pure functions on arrays, and the intervals that go with their means."""
from __future__ import annotations

import numpy as np

RESAMPLES = 1000
RUN = 32                             # neighbouring positions are drawn together


def kl(logp_ref: np.ndarray, logp: np.ndarray) -> np.ndarray:
    """KL divergence of each row of logp [rows, vocabulary] from the reference, in nats."""
    return np.einsum("ij,ij->i", np.exp(logp_ref), logp_ref - logp, dtype=np.float64)


def top1(logp_ref: np.ndarray, logp: np.ndarray) -> np.ndarray:
    """1 where both rows have the same most likely token."""
    return (logp_ref.argmax(axis=1) == logp.argmax(axis=1)).astype(np.float64)


def nll(logp: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Negative log-likelihood of each row's next token."""
    return -logp[np.arange(len(tokens)), tokens].astype(np.float64)


def k_norm_error(k: np.ndarray, k_hat: np.ndarray) -> np.ndarray:
    """Relative error of each key's length; k, k_hat [..., D]."""
    length = np.linalg.norm(k, axis=-1)
    return np.abs(np.linalg.norm(k_hat, axis=-1) - length) / np.maximum(length, 1e-20)


def magnitude_direction(k: np.ndarray, k_hat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The squared error of each key in two parts that add up to it.

    E_M = (|k| - |k_hat|)^2 and E_D = 2 |k| |k_hat| (1 - cos), the rest.
    """
    total = np.square(k.astype(np.float64) - k_hat).sum(axis=-1)
    length, length_hat = np.linalg.norm(k, axis=-1), np.linalg.norm(k_hat, axis=-1)
    magnitude = np.square(length.astype(np.float64) - length_hat)
    return magnitude, np.maximum(total - magnitude, 0)


def worst_share(magnitude: np.ndarray, direction: np.ndarray, share: float = 0.01) -> float:
    """E_M of the squared error in the given share of tokens with the largest errors."""
    magnitude, total = magnitude.ravel(), (magnitude + direction).ravel()
    worst = np.argsort(-total)[:max(1, int(share * total.size))]
    return float(magnitude[worst].sum() / max(total[worst].sum(), 1e-30))


def attention_error(error2: np.ndarray, norm2: np.ndarray) -> np.ndarray:
    """Relative error from summed squares of the difference and of the exact output."""
    return np.sqrt(error2 / np.maximum(norm2, 1e-30))


def p99(x: np.ndarray) -> np.ndarray:
    return np.quantile(x, 0.99, axis=-1)


def mean(x: np.ndarray) -> np.ndarray:
    return x.mean(axis=-1)


def interval(values: np.ndarray, statistic=mean, seed: int = 1) -> tuple[float, float, float]:
    """The statistic with its 95 % interval: bootstrap over runs of neighbouring positions."""
    values = np.asarray(values, np.float64)
    run = min(RUN, len(values))
    starts = len(values) - run + 1
    draws = -(-len(values) // run)
    rng = np.random.default_rng(seed)
    first = rng.integers(0, starts, (RESAMPLES, draws))
    index = (first[:, :, None] + np.arange(run)).reshape(RESAMPLES, -1)[:, :len(values)]
    low, high = np.quantile(statistic(values[index]), (0.025, 0.975))
    return float(statistic(values)), float(low), float(high)
