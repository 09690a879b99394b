"""The percentile bootstrap: resamples of units, the same ones every time.

Efron 1979, doi:10.1214/aos/1176344552.
"""

import numpy as np
from numpy.typing import NDArray

LEVELS = (0.025, 0.975)  # the quantiles at the ends of a 95% interval
_SEED = 0


def resampled_counts(n: int, n_resamples: int) -> NDArray[np.float64]:
    """Return how often each of `n` units is in each resample: whole numbers, (n_resamples, n)."""
    counts = np.random.default_rng(_SEED).multinomial(n, np.full(n, 1 / n), n_resamples)
    return counts.astype(np.float64)
