"""`AttentionConformance`: the cases of the `attention` slot.

What a backend claims decides what is examined: a claim that fails is a failure, what is not claimed is listed as such. Every comparison
is with float64 over keys that never were in a cache, within an error bound that `attention_truth` derives for the very numbers compared.
"""

from __future__ import annotations

from slotwise.testing.attention_feature_cases import AttentionFeatureCases
from slotwise.testing.attention_memory_cases import AttentionMemoryCases
from slotwise.testing.attention_numeric_cases import AttentionNumericCases
from slotwise.testing.attention_step_cases import AttentionStepCases


class AttentionConformance(AttentionStepCases, AttentionMemoryCases, AttentionFeatureCases, AttentionNumericCases):
    """Subclass it in a test module as `class TestMyAttention(AttentionConformance): component = "my_attention"`."""
