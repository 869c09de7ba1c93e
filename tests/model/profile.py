"""How long Hypothesis tries, and what it does with a failure.

STREAMKEEP_EXAMPLES=20   multiplies the number of examples
STREAMKEEP_SHRINK=1      makes failing examples small, which may take minutes; Hypothesis
                         remembers the last failure and begins with it
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings

FACTOR = int(os.environ.get("STREAMKEEP_EXAMPLES", "1"))
SHRINK = os.environ.get("STREAMKEEP_SHRINK", "0") != "0"


# No test fails because a machine is busy: no deadline, and no check of how long inputs take.
ANY_MACHINE: Final = "any machine"
settings.register_profile(
    ANY_MACHINE,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,  # they hold nothing that examples share
    ],
)


def configured(examples: int) -> settings:
    """Return the settings of a test with this many examples; machines take up to fifty steps."""
    return settings(
        max_examples=examples * FACTOR,
        stateful_step_count=50,
        report_multiple_bugs=False,
        phases=[phase for phase in Phase if SHRINK or phase not in (Phase.shrink, Phase.explain)],
    )
