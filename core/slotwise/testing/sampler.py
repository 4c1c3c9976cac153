"""`SamplerConformance`: the cases of the `sampler` slot.

Draws are judged by chi-square tests against float64, everything else exactly. What a sampler does not claim is not examined.
What this file does not know: how samplers work.
"""

from __future__ import annotations

from slotwise.testing.sampler_draft_cases import SamplerDraftCases
from slotwise.testing.sampler_draft_row_cases import SamplerDraftRowCases
from slotwise.testing.sampler_edge_cases import SamplerEdgeCases
from slotwise.testing.sampler_logprob_cases import SamplerLogprobCases
from slotwise.testing.sampler_rule_cases import SamplerRuleCases
from slotwise.testing.sampler_seed_cases import SamplerSeedCases


class SamplerConformance(
    SamplerDraftCases, SamplerDraftRowCases, SamplerSeedCases, SamplerLogprobCases, SamplerEdgeCases, SamplerRuleCases
):
    """Subclass it in a test module as `class TestMySampler(SamplerConformance): component = "my_sampler"`."""
