"""How many examples a property test takes: more of the same in `scripts/test --nightly`."""

import os

from hypothesis import HealthCheck, settings

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
FACTOR = 100 if NIGHTLY else 1


def examples(count: int) -> settings:
    """Return settings for `count` examples, a hundred times as many at night."""
    return settings(max_examples=count * FACTOR, suppress_health_check=[HealthCheck.function_scoped_fixture])
