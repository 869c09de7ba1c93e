"""How long Hypothesis tries, and what it does with a failure.

STREAMKEEP_TESTS=all     tries as often as a test asks for, instead of a fifth of that
STREAMKEEP_EXAMPLES=20   multiplies the number of examples
STREAMKEEP_SHRINK=1      makes failing examples small, which may take minutes; Hypothesis
                         remembers the last failure and begins with it
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings

from tiers import daily_or_all

FACTOR: Final = int(os.environ.get("STREAMKEEP_EXAMPLES", "1"))
SHRINK: Final = os.environ.get("STREAMKEEP_SHRINK", "0") != "0"
DAILY_PART: Final = 5
LEAST: Final = 4


def _examples(wanted: int) -> int:
    return daily_or_all(max(LEAST, wanted // DAILY_PART), wanted) * FACTOR


# No test fails because a machine is busy: no deadline, and no check of how long inputs take.
ANY_MACHINE: Final = "any machine"
settings.register_profile(
    ANY_MACHINE,
    deadline=None,
    max_examples=_examples(100),
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,  # they hold nothing that examples share
    ],
)


def configured(examples: int, *, steps: int = 50) -> settings:
    """Return the settings of a test.

    Args:
        examples: how many there are in `make test-all`; the daily tests run a fifth of them.
        steps: how many steps a machine takes at most.
    """
    return settings(
        max_examples=_examples(examples),
        stateful_step_count=steps,
        report_multiple_bugs=False,
        phases=[phase for phase in Phase if SHRINK or phase not in (Phase.shrink, Phase.explain)],
    )
