"""`flashinfer`: paged, ragged batches through the FlashInfer library.

Each step is planned once for every kind of layer (window, scale, soft cap, heads), which reads the lengths back from the device; the
layers of a kind then run without the CPU.

What this file does not know: which rows go together (`planner`), FlashInfer's arguments (`wrappers`).
"""

from __future__ import annotations

import math

import torch

from slotwise.interfaces.attention import HND, AttentionBackend, AttentionCall, AttentionSetup, MetadataRequest
from slotwise_backends.flashinfer_attention.capabilities import CAPABILITIES, FlashInferOptions
from slotwise_backends.flashinfer_attention.planner import Part, StepMetadata, StepPlanner
from slotwise_backends.flashinfer_attention.wrappers import RaggedPlan, WrapperFactory
from slotwise_backends.lse_merge import merge_parts


class FlashInferAttention(AttentionBackend):
    """Attention by the FlashInfer library."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        options = setup.options if isinstance(setup.options, FlashInferOptions) else FlashInferOptions()
        self.factory = WrapperFactory(
            workspace=torch.zeros(options.workspace_mib * 2**20, dtype=torch.uint8, device=setup.device),
            kv_layout="HND" if setup.kv_layout == HND else "NHD",
            dtype=getattr(torch, setup.dtype),
            kv_dtype=getattr(torch, setup.kv_dtype),
            use_tensor_cores=options.use_tensor_cores,
        )
        self.planner = StepPlanner(setup, self.factory)
        self._last: StepMetadata | None = None

    def build_metadata(self, request: MetadataRequest) -> StepMetadata:
        self.planner.take_back(self._last)
        common, num_reqs = request.common, request.common.num_reqs
        starts = common.query_start_loc_cpu[: num_reqs + 1]
        step = StepMetadata(
            common=common,
            query_lens=starts[1:] - starts[:-1],
            key_lens=common.seq_lens[:num_reqs].cpu(),
            common_prefix_len=request.common_prefix_len,
            is_captured=request.for_graph_capture,
        )
        self._last = None if step.is_captured else step
        if step.is_captured:
            for layer in self.setup.layers:
                self.planner.planned(step, layer)
        return step

    def forward(self, call: AttentionCall) -> None:
        call.output.zero_()
        if call.lse is not None:
            call.lse.fill_(-math.inf)
        step: StepMetadata | None = call.metadata
        if step is None:
            return
        planned = self.planner.planned(step, call.layer)
        results = [self._run(call, step, part) for part in planned.parts]
        if planned.is_cascade:
            results = [merge_parts([output for output, _ in results], [lse for _, lse in results])]
        for part, (output, lse) in zip(planned.parts, results, strict=False):
            where = slice(0, output.shape[0]) if part.tokens is None else part.tokens
            call.output[where] = output
            if call.lse is not None:
                call.lse[where] = lse

    def _run(self, call: AttentionCall, step: StepMetadata, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        num_tokens = step.common.num_reqs if step.is_captured else step.common.num_tokens
        tokens = slice(0, num_tokens) if part.tokens is None else part.tokens
        if isinstance(part.plan, RaggedPlan):
            assert call.key is not None  # encoders bring them
            assert call.value is not None
            return part.plan.run(call.query[tokens], call.key[tokens], call.value[tokens])
        return part.plan.run(call.query[tokens], call.kv_cache, call.k_scale, call.v_scale)
