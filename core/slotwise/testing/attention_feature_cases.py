"""Cases of the `attention` slot about what a backend may claim: each runs only where it is claimed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any, Final

import torch

from slotwise.interfaces.attention import CHUNKED_LOCAL, CROSS, ENCODER, ENCODER_ONLY, SLIDING_WINDOW
from slotwise.testing.attention_kit import LATENT_DIMS, AttentionKit
from slotwise.testing.attention_scenario import DECODES, MIXED, PROMPTS, Scenario
from slotwise.testing.verdicts import NotClaimedError, require

KV_SCALES: Final = {"int8": (2.0**-4, 2.0**-5), "float8_e4m3fn": (0.5, 0.25), "float8_e5m2": (0.5, 0.25)}
"""Powers of two, so that the kit's numbers are stored without loss; K's and V's differ."""
COMMON_PREFIX: Final = 48


class AttentionFeatureCases(AttentionKit):
    """One feature each, then all of them mixed."""

    def test_sliding_window(self) -> None:
        """Position p sees p - W + 1 .. p; what left the window is gone from the cache."""
        self.require_claim(SLIDING_WINDOW in self.claims.layer_kinds, "sliding windows")
        for window in (1, 3, 6, 16, 100):
            self.check(Scenario(**MIXED, sliding_window=window), "sliding window")
            self.check(Scenario(query_lens=(1, 2, 30), seq_lens=(60, 41, 45), sliding_window=window), "sliding window")

    def test_sliding_window_counts_the_position_itself(self) -> None:
        """Queries and keys of 0 over six positions: each sees 1, 2, 3, 3, 3, 3 of them under a window of 3, whole or in chunks."""
        self.require_claim(SLIDING_WINDOW in self.claims.layer_kinds, "sliding windows")
        for chunks in ((6,), (2, 4), (1,) * 6):
            done = 0
            for query_len in chunks:
                done += query_len
                scenario = Scenario(query_lens=(query_len,), seq_lens=(done,), num_heads=2, num_kv_heads=1, sliding_window=3, magnitude=0.0)
                self.check(scenario, "sliding window")

    def test_chunked_local(self) -> None:
        """Position p sees the positions of its own chunk up to itself."""
        self.require_claim(CHUNKED_LOCAL in self.claims.layer_kinds, "chunked-local attention")
        for length in (1, 4, 6, 100):
            self.check(Scenario(**MIXED, chunk_len=length), "chunked local")
            self.check(Scenario(query_lens=(1, 2, 30), seq_lens=(60, 41, 45), chunk_len=length), "chunked local")

    def test_soft_cap(self) -> None:
        """Scores become c * tanh(score / c) after the scale and before the mask."""
        self.require_claim(self.claims.logits_soft_cap, "logit soft caps")
        for cap in (0.5, 2.0, 50.0):
            self.check(Scenario(**MIXED, logits_soft_cap=cap, scale=1.0), "soft cap")

    def test_alibi(self) -> None:
        """slope * distance is subtracted from each score."""
        self.require_claim(self.claims.alibi, "ALiBi")
        self.check(Scenario(**MIXED, has_alibi=True), "ALiBi")
        self.check(Scenario(query_lens=(1, 20), seq_lens=(90, 33), has_alibi=True, num_heads=6, num_kv_heads=3), "ALiBi")

    def test_sinks(self) -> None:
        """A sink joins the denominator once, neither scaled nor capped, however the keys are split."""
        self.require_claim(self.claims.sinks, "sinks")
        self.check(Scenario(**MIXED, has_sinks=True), "sinks")
        self.check(Scenario(query_lens=(1, 1), seq_lens=(700, 2), has_sinks=True, scale=0.01), "sinks")
        if self.claims.logits_soft_cap:
            self._check_if_combined(Scenario(**MIXED, has_sinks=True, logits_soft_cap=0.5), "sinks")
        if SLIDING_WINDOW in self.claims.layer_kinds:
            self._check_if_combined(Scenario(**MIXED, has_sinks=True, sliding_window=3), "sinks")

    def test_lse(self) -> None:
        """The log-sum-exp of the visible scores is a natural logarithm, sinks counted."""
        self.require_claim(self.claims.lse, "LSE")
        for dtype in self.dtypes():
            self.check(Scenario(**MIXED, wants_lse=True, dtype=dtype, num_padding_tokens=2), "LSE")
        self.check(Scenario(query_lens=(1, 3), seq_lens=(600, 599), wants_lse=True, scale=1.0), "LSE")
        if self.claims.sinks:
            self._check_if_combined(Scenario(**MIXED, wants_lse=True, has_sinks=True), "LSE")

    def test_non_causal(self) -> None:
        """Rows that see their later tokens too, all of them or some."""
        self.require_claim(self.claims.non_causal, "rows that are not causal")
        self.check(Scenario(**MIXED, causal=False), "non-causal")
        self.check(Scenario(**MIXED, causal=(True, False, True, False, False, True)), "non-causal")
        self.check(Scenario(**MIXED, is_layer_causal=False), "non-causal")

    def test_custom_masks(self) -> None:
        """Trees of drafts, bidirectional prefixes, arbitrary masks; under a window too."""
        self.require_claim(self.claims.custom_mask, "custom masks")
        for mask in ("tree", "prefix", "random"):
            self.check(Scenario(**MIXED, mask=mask), "custom mask")
        if SLIDING_WINDOW in self.claims.layer_kinds:
            self._check_if_combined(Scenario(**MIXED, mask="random", sliding_window=4), "custom mask")

    def test_rows_that_see_nothing(self) -> None:
        """A row whose mask hides every key is exactly 0, its LSE is minus infinity."""
        self.require_claim(self.claims.custom_mask, "custom masks, the way to hide every key")
        self.check(Scenario(**MIXED, mask="nothing", wants_lse=self.claims.lse), "rows that see nothing")
        if self.claims.sinks:
            self._check_if_combined(Scenario(**MIXED, mask="nothing", has_sinks=True), "rows that see nothing")

    def test_encoders(self) -> None:
        """Whole sequences that see this step's keys to both sides; nothing is cached."""
        kinds = [kind for kind in (ENCODER, ENCODER_ONLY) if kind in self.claims.attention_types]
        self.require_claim(kinds, "encoder layers")
        for kind in kinds:
            scenario = Scenario(**PROMPTS, attention_type=kind, is_layer_causal=False, num_padding_tokens=2)
            self.check(scenario, "encoder")
            if SLIDING_WINDOW in self.claims.layer_kinds:
                self._check_if_combined(replace(scenario, sliding_window=3), "encoder")

    def test_cross_attention(self) -> None:
        """Rows see the whole of another sequence, wherever they stand in their own; an empty one leaves 0."""
        self.require_claim(CROSS in self.claims.attention_types, "cross attention")
        for encoder_seq_lens in ((20, 3, 7, 12, 1, 30), (5, 3, 0, 12, 1, 0)):
            scenario = Scenario(**MIXED, attention_type=CROSS, is_layer_causal=False, encoder_seq_lens=encoder_seq_lens)
            self.check(scenario, "cross attention")

    def test_latent_attention(self) -> None:
        """MLA in absorbed form: one latent per token is key, its head is value."""
        self.require_claim(self.claims.mla, "latent KV caches (MLA)")
        for _, value_dim in self.claims.mla_dims or LATENT_DIMS:
            for shape in (MIXED, DECODES):
                self.check(Scenario(**shape, latent_value_dim=value_dim, num_kv_heads=1, wants_lse=self.claims.lse), "MLA")
            self.check(Scenario(**DECODES, latent_value_dim=value_dim, num_kv_heads=1, num_heads=24), "MLA")

    def test_quantised_kv(self) -> None:
        """Stored K and V times their scales are K and V, for every claimed storage dtype."""
        kv_dtypes = [dtype for dtype in self.claims.kv_dtypes if dtype != "auto"]
        self.require_claim(kv_dtypes, "storage dtypes other than the model's")
        for kv_dtype in kv_dtypes:
            k_scale, v_scale = KV_SCALES.get(kv_dtype, (1.0, 1.0))
            for dtype in self.dtypes():
                for shape in (MIXED, DECODES):
                    scenario = Scenario(**shape, kv_dtype=kv_dtype, dtype=dtype, k_scale=k_scale, v_scale=v_scale)
                    self._check_if_combined(scenario, f"KV in {kv_dtype}")

    def test_cascade(self) -> None:
        """A prefix that all rows share, announced by `common_prefix_len`, changes no result."""
        self.require_claim(self.claims.cascade, "cascades")
        for wants_lse in {False, self.claims.lse}:
            for scenario in self._cascades(wants_lse=wants_lse):
                self.check(scenario, "cascade")

    def test_parts_of_a_cascade_join_once(self) -> None:
        """Sinks, soft cap and ALiBi mean the same where a prefix is computed apart; together, where they are not refused together."""
        claims = self.claims
        self.require_claim(claims.cascade, "cascades")
        ways: list[dict[str, Any]] = [{"has_sinks": True}] if claims.sinks else []
        ways += [{"logits_soft_cap": 3.0}] if claims.logits_soft_cap else []
        ways += [{"has_alibi": True}] if claims.alibi else []
        self.require_claim(ways, "sinks, soft cap or ALiBi")
        together = {name: value for changes in ways for name, value in changes.items()}
        decodes = self._cascades(wants_lse=claims.lse, **together)[0]
        for changes in [together] if self.refused_combination(decodes) is None else ways:
            for scenario in self._cascades(wants_lse=claims.lse, **changes):
                self._check_if_combined(scenario, "cascade with sinks and scores of its own")

    def _cascades(self, **changes: Any) -> tuple[Scenario, ...]:
        """Decodes and a mixed batch behind one prefix, of whole blocks of a size that the backend accepts."""
        sizes = self.block_sizes()
        size = next((size for size in sizes if COMMON_PREFIX % size == 0), min(sizes))
        length = max(COMMON_PREFIX, size)
        return tuple(
            Scenario(
                query_lens=query_lens,
                seq_lens=tuple(length + own for own in own_lens),
                common_prefix_len=length,
                block_size=size,
                **changes,
            )
            for query_lens, own_lens in (((1, 1, 1, 1), (1, 12, 4, 32)), ((1, 5, 1, 20), (1, 12, 29, 20)))
        )

    def test_context_parallelism(self) -> None:
        """Each of several ranks attends to the positions it holds; merged by LSE they give the whole."""
        self.require_claim(self.claims.context_parallel, "context parallelism")
        self.require_claim(self.claims.lse, "LSE, without which parts cannot be merged")
        for num_ranks in (2, 3):
            for shape in (MIXED, DECODES):
                for rank in range(num_ranks):
                    scenario = Scenario(**shape, num_ranks=num_ranks, rank=rank, wants_lse=True, has_sinks=self.claims.sinks)
                    self._check_if_combined(scenario, "context parallelism")

    def test_shared_kv(self) -> None:
        """A layer without K and V of its own reads what another layer wrote."""
        self.require_claim(self.claims.kv_sharing, "layers that share another's KV")
        self.require_claim(not self.claims.fused_kv_write, "KV writes of their own call")
        batch = self.batch(Scenario(**MIXED))
        backend = self.make_backend(batch)
        cache = self.make_cache(backend, batch)
        self.write_step(backend, batch, cache)
        layer = replace(batch.layer, name="reader", index=1, kv_sharing_target=batch.layer.name)
        call = self.call(batch, cache, backend.build_metadata(self.request(batch)), layer=layer, key=None, value=None)
        backend.forward(call)
        self.compare(batch, call, "shared KV")

    def test_parts_merge_by_lse(self) -> None:
        """Scores [0, 1] with values [0, 1] have LSE 1.3132616875; merged with score 2, value 2, they give 1.5752103826."""
        self.require_claim(self.claims.lse, "LSE")
        scenario = Scenario(query_lens=(1,), seq_lens=(2,), num_heads=1, num_kv_heads=1, scale=1.0, wants_lse=True)
        batch = self.batch(scenario)
        batch.query.zero_()
        batch.query[..., 0] = 1.0
        for rows in (batch.keys, batch.values):
            rows[0].zero_()
            rows[0][1, :, 0] = 1.0
        call = self.run(batch)
        assert call.lse is not None
        output, lse = call.output[0, 0, 0].item(), call.lse[0, 0].item()
        merged = (output * math.exp(lse) + 2.0 * math.exp(2.0)) / (math.exp(lse) + math.exp(2.0))
        allowed = 8 * torch.finfo(batch.dtype).eps
        require(
            abs(lse - 1.3132616875) <= max(allowed, 1e-6), f"LSE of scores [0, 1] is {lse:.9f}, must be 1.3132616875 (natural logarithm)"
        )
        require(abs(merged - 1.5752103826) <= max(allowed, 1e-6), f"merged by LSE the parts give {merged:.9f}, must be 1.5752103826")

    def test_features_together(self) -> None:
        """Random combinations of everything that is claimed, `not_together` left out."""
        generator = torch.Generator().manual_seed(self.seed)
        options = self._claimed_variations()
        if not options:
            raise NotClaimedError("claims no feature that could be combined")
        for number in range(min(self.max_examples, 16)):
            changes: dict[str, Any] = {}
            for variations in options:
                if torch.rand(1, generator=generator) < 0.5:
                    changes |= variations[int(torch.randint(len(variations), (1,), generator=generator))]
            shape = (MIXED, DECODES, PROMPTS)[number % 3]
            scenario = Scenario(**shape, seed=self.seed * 1000 + number, **changes)
            if self.refused_combination(scenario) is None:
                self.check(scenario, "combinations")

    def _claimed_variations(self) -> list[list[dict[str, Any]]]:
        """For each claimed feature, ways to use it; features in one list exclude each other."""
        claims = self.claims
        kinds: list[dict[str, Any]] = []
        if SLIDING_WINDOW in claims.layer_kinds:
            kinds += [{"sliding_window": window} for window in (2, 5, 11)]
        if CHUNKED_LOCAL in claims.layer_kinds:
            kinds += [{"chunk_len": length} for length in (3, 8)]
        visibility: list[dict[str, Any]] = [{"is_layer_causal": False}] if claims.non_causal else []
        if claims.custom_mask:
            visibility += [{"mask": mask} for mask in ("tree", "prefix", "random")]
        storage: list[dict[str, Any]] = [
            {"kv_dtype": kv_dtype, "k_scale": KV_SCALES[kv_dtype][0], "v_scale": KV_SCALES[kv_dtype][1]}
            for kv_dtype in claims.kv_dtypes
            if kv_dtype in KV_SCALES
        ]
        flags: dict[str, list[dict[str, Any]]] = {
            "logits_soft_cap": [{"logits_soft_cap": 3.0}] if claims.logits_soft_cap else [],
            "sinks": [{"has_sinks": True}] if claims.sinks else [],
            "alibi": [{"has_alibi": True}] if claims.alibi else [],
            "lse": [{"wants_lse": True}] if claims.lse else [],
        }
        layouts: list[dict[str, Any]] = [{"layout": layout} for layout in claims.kv_layouts[1:]]
        dtypes: list[dict[str, Any]] = [{"dtype": dtype} for dtype in self.dtypes()[1:]]
        return [each for each in itertools.chain([kinds, visibility, storage, layouts, dtypes], flags.values()) if each]

    def _check_if_combined(self, scenario: Scenario, feature: str) -> None:
        if self.refused_combination(scenario) is None:
            self.check(scenario, feature)
