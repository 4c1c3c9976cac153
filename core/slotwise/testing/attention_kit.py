"""`AttentionKit`: how the cases of the `attention` slot get a backend, run a scenario on it and compare with the truth.

What this file does not know: which scenarios there are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Final

import torch

from slotwise.engine.kv_layout import allocate, stored
from slotwise.errors import ConfigError
from slotwise.interfaces.attention import (
    HND,
    LATENT,
    NHD,
    AttentionBackend,
    AttentionCall,
    AttentionCapabilities,
    AttentionSetup,
    KVLayoutRequest,
    KVWrite,
    MetadataRequest,
)
from slotwise.plugin.contract import base_class
from slotwise.testing.attention_batch import AttentionBatch, Dimensions
from slotwise.testing.attention_scenario import Scenario
from slotwise.testing.conformance import ComponentConformance, load_component
from slotwise.testing.verdicts import NotClaimedError, require

HEAD_DIMS: Final = (16, 20, 32, 64, 80, 96, 128, 192, 256, 8, 48, 72)
"""Tried where accepted; the first accepted one serves all cases that are not about it."""
BLOCK_SIZES: Final = (4, 12, 16, 1, 7, 32, 48, 64, 128, 256)
LATENT_DIMS: Final = ((48, 32), (576, 512))
DTYPES: Final = ("float64", "float32", "bfloat16", "float16")


class AttentionKit(ComponentConformance):
    """Base of the classes that hold cases."""

    slot: ClassVar[str] = "attention"
    device: ClassVar[str | None] = None
    """Torch device to run on; by default the first that the backend claims and this machine has. Naming one overrules the claim, for
    kernels run in an interpreter or libraries replaced by a stand-in."""

    @cached_property
    def worst_ulps(self) -> dict[str, float]:
        """What was compared -> largest error found, in ulps of the dtype at the largest value of the head."""
        return {}

    @property
    def measurements(self) -> dict[str, float]:
        """`worst_ulps`."""
        return self.worst_ulps

    @property
    def claims(self) -> AttentionCapabilities:
        """The backend's capabilities; of the record, where it is registered."""
        if isinstance(self.component, str):
            capabilities = getattr(load_component(self.slot, self.component).component, "capabilities", None)
        else:
            capabilities = getattr(self.implementation()[0], "capabilities", None)
        require(isinstance(capabilities, AttentionCapabilities), f"capabilities must be AttentionCapabilities, not {capabilities!r}")
        assert isinstance(capabilities, AttentionCapabilities)
        return capabilities

    @property
    def device_name(self) -> str:
        """The device that the cases run on. Raises NotClaimedError if the backend runs on none that is here."""
        if self.device is not None:
            return self.device
        for device in self.claims.devices:
            if device == "cpu" or (device == "cuda" and torch.cuda.is_available()):
                return device
        raise NotClaimedError(f"runs on {', '.join(self.claims.devices)}, which this machine lacks")

    def require_runnable(self) -> None:
        super().require_runnable()
        try:
            self.device_name  # noqa: B018 - it raises
        except NotClaimedError as reason:
            raise ConfigError(
                f"{self.component} {reason}: none of its cases can run here. Examine it on such a machine, or name another with --device "
                "if its kernels are interpreted or its library is replaced by a stand-in."
            ) from reason

    # Choosing what a scenario leaves open.

    def require_claim(self, is_claimed: object, what: str) -> None:
        """Raise NotClaimedError unless `is_claimed`."""
        if not is_claimed:
            raise NotClaimedError(f"does not claim {what}")

    def dtypes(self) -> tuple[str, ...]:
        """Claimed dtypes, widest first."""
        claimed = tuple(dtype for dtype in DTYPES if dtype in self.claims.dtypes)
        require(claimed, f"capabilities.dtypes must name some of {', '.join(DTYPES)}, not only {self.claims.dtypes}")
        return claimed

    def head_dims(self) -> tuple[int, ...]:
        """Accepted head dimensions."""
        claims = self.claims
        candidates = claims.head_dims if claims.head_dims is not None else HEAD_DIMS
        limit = claims.max_head_dim or max(candidates)
        return tuple(dim for dim in candidates if dim % claims.head_dim_multiple_of == 0 and dim <= limit)

    def block_sizes(self) -> tuple[int, ...]:
        """Accepted block sizes."""
        claims = self.claims
        candidates = claims.block_sizes if claims.block_sizes is not None else (*BLOCK_SIZES, claims.block_size_multiple_of)
        return tuple(dict.fromkeys(size for size in candidates if size % claims.block_size_multiple_of == 0))

    def dimensions(self, scenario: Scenario) -> Dimensions:
        """What is left open, chosen from the claims."""
        if scenario.latent_value_dim is not None:
            head_dim = next(dim for dim, value_dim in (self.claims.mla_dims or LATENT_DIMS) if value_dim == scenario.latent_value_dim)
            layout = LATENT
        else:
            head_dim = self.head_dims()[0] if scenario.head_dim is None else scenario.head_dim
            layout = scenario.layout or self.claims.kv_layouts[0]
        return Dimensions(
            dtype=scenario.dtype or self.dtypes()[0],
            head_dim=head_dim,
            block_size=self.block_sizes()[0] if scenario.block_size is None else scenario.block_size,
            layout=layout,
        )

    def batch(self, scenario: Scenario) -> AttentionBatch:
        """The scenario as tensors."""
        return AttentionBatch(scenario, self.dimensions(scenario), self.device_name)

    def make_backend(self, batch: AttentionBatch, *others: AttentionBatch) -> AttentionBackend:
        """A backend for the batch's layer (and those of `others`); override it where the class alone would not do."""
        implementation, options = self.implementation()
        batches = (batch, *others)
        setup = AttentionSetup(
            layers=tuple(each.layer for each in batches),
            block_size=batch.dimensions.block_size,
            kv_layout=batch.dimensions.layout,
            dtype=batch.dimensions.dtype,
            kv_dtype=str(batch.kv_dtype).removeprefix("torch."),
            device=self.device_name,
            max_num_reqs=max(len(each.scenario.query_lens) for each in batches),
            max_num_batched_tokens=max(each.query.shape[0] for each in batches),
            max_model_len=max(*(max(each.scenario.key_lens) for each in batches), *(max(each.scenario.seq_lens) for each in batches)),
            batch_invariant=batch.scenario.batch_invariant,
            options=options,
        )
        backend: AttentionBackend = implementation(setup)
        require(isinstance(backend, base_class(self.slot)), f"{implementation.__name__} must subclass AttentionBackend")
        return backend

    # Running.

    def make_cache(self, backend: AttentionBackend, batch: AttentionBatch) -> torch.Tensor:
        """The layer's cache: the context in its slots, poison everywhere else, this step's slots included."""
        if batch.scenario.is_encoder:
            return torch.empty(0, dtype=batch.kv_dtype, device=batch.device)
        layout = backend.kv_cache_layout(
            KVLayoutRequest(
                name=batch.dimensions.layout,
                num_blocks=batch.num_blocks,
                block_size=batch.dimensions.block_size,
                num_kv_heads=batch.layer.num_kv_heads,
                head_dim=batch.dimensions.head_dim,
                dtype=str(batch.kv_dtype).removeprefix("torch."),
            )
        )
        cache = allocate(layout, batch.device)
        poison(cache, batch.scenario.poison)
        for row in range(len(batch.scenario.query_lens)):
            positions = batch.held_positions(row)
            is_cross = batch.scenario.encoder_seq_lens is not None
            context = positions if is_cross else positions[positions < batch.scenario.seq_lens[row] - batch.scenario.query_lens[row]]
            value = None if batch.layer.is_mla else batch.values[row][context].to(batch.device)
            slots = batch.slots(row, context).to(batch.device)
            self.store(backend, batch, kv_write(batch, cache, slots, batch.keys[row][context].to(batch.device), value))
        return cache

    @staticmethod
    def store(backend: AttentionBackend, batch: AttentionBatch, write: KVWrite) -> None:
        """Put rows into slots (none of them -1) without the backend's help, where the layout is a standard one."""
        cache, block_size = write.kv_cache, batch.dimensions.block_size
        blocks, offsets = write.slot_mapping // block_size, write.slot_mapping % block_size
        if batch.dimensions.layout in (NHD, HND):
            assert write.value is not None
            cache[blocks, 0, offsets] = stored(write.key, write.k_scale, batch.kv_dtype)
            cache[blocks, 1, offsets] = stored(write.value, write.v_scale, batch.kv_dtype)
        elif batch.dimensions.layout == LATENT:
            cache[blocks, offsets] = stored(write.key.squeeze(1), write.k_scale, batch.kv_dtype)
        else:
            backend.write_kv(write)

    def write_step(self, backend: AttentionBackend, batch: AttentionBatch, cache: torch.Tensor) -> None:
        """Write this step's tokens as the engine does: nothing for a backend that fuses the write, or a layer that writes none."""
        if batch.scenario.is_encoder or batch.scenario.encoder_seq_lens is not None or backend.capabilities.fused_kv_write:
            return
        backend.write_kv(kv_write(batch, cache, batch.common.slot_mapping, *batch.step_keys()))

    def call(self, batch: AttentionBatch, cache: torch.Tensor, metadata: Any, **changes: Any) -> AttentionCall:
        """The forward's argument, its results full of NaN."""
        key, value = (None, None) if batch.scenario.encoder_seq_lens is not None else batch.step_keys()
        num_rows = batch.query.shape[0]
        call = AttentionCall(
            layer=batch.layer,
            query=batch.query,
            key=key,
            value=value,
            kv_cache=cache,
            metadata=metadata,
            output=torch.full((num_rows, batch.layer.num_heads, batch.layer.value_dim), math.nan, dtype=batch.dtype, device=batch.device),
            lse=torch.full((num_rows, batch.layer.num_heads), math.nan, device=batch.device) if batch.scenario.wants_lse else None,
            sinks=batch.sinks,
            alibi_slopes=batch.alibi_slopes,
            k_scale=batch.scenario.k_scale,
            v_scale=batch.scenario.v_scale,
        )
        return replace(call, **changes)

    @staticmethod
    def request(batch: AttentionBatch, **changes: Any) -> MetadataRequest:
        """What `build_metadata` is asked for."""
        return MetadataRequest(common=batch.common, common_prefix_len=batch.scenario.common_prefix_len, **changes)

    def run(self, batch: AttentionBatch, backend: AttentionBackend | None = None) -> AttentionCall:
        """One step of a new backend (or of `backend`) on a new cache; the call holds output and LSE."""
        backend = backend or self.make_backend(batch)
        cache = self.make_cache(backend, batch)
        metadata = backend.build_metadata(self.request(batch))
        self.write_step(backend, batch, cache)
        call = self.call(batch, cache, metadata)
        backend.forward(call)
        return call

    # Comparing.

    def check(self, scenario: Scenario, feature: str, backend: AttentionBackend | None = None) -> AttentionCall:
        """Run a scenario and compare with the truth. Raises NotClaimedError for a combination the backend refuses."""
        self.require_combination(scenario)
        batch = self.batch(scenario)
        call = self.run(batch, backend)
        self.compare(batch, call, feature)
        return call

    def require_combination(self, scenario: Scenario) -> None:
        """Raise NotClaimedError for a combination in `not_together`."""
        refused = self.refused_combination(scenario)
        self.require_claim(refused is None, f"{' with '.join(refused or ())}")

    def refused_combination(self, scenario: Scenario) -> tuple[str, ...] | None:
        """The entry of `not_together` that the scenario would need."""
        return next((names for names in self.claims.not_together if set(names) <= scenario.features), None)

    def compare(self, batch: AttentionBatch, call: AttentionCall, feature: str) -> None:
        """Raises ConformanceError naming the worst element; padding rows must hold zeros and minus infinity."""
        truth, num_tokens = batch.truth(), batch.common.num_tokens
        output = call.output.double().cpu()
        require(bool((output[num_tokens:] == 0).all()), f"{feature}: rows of padding must be 0 ({batch.scenario})")
        self._compare_tensor(batch, output[:num_tokens], truth.output, truth.output_error, f"{feature}: output")
        largest = truth.output.abs().amax(dim=2, keepdim=True).clamp(min=torch.finfo(batch.dtype).tiny)
        ulps = (output[:num_tokens] - truth.output).abs() / (largest * torch.finfo(batch.dtype).eps)
        self._note(feature, ulps)
        if call.lse is not None:
            lse = call.lse.double().cpu()
            require(bool(torch.isneginf(lse[num_tokens:]).all()), f"{feature}: LSE of padding must be -inf ({batch.scenario})")
            self._compare_tensor(batch, lse[:num_tokens], truth.lse, truth.lse_error, f"{feature}: LSE")

    def _compare_tensor(self, batch: AttentionBatch, found: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor, what: str) -> None:
        same = (found == expected) | ((found - expected).abs() <= allowed)
        if bool(same.all()):
            return
        excess = torch.where(same, 0.0, ((found - expected).abs() / allowed).nan_to_num(math.inf, posinf=math.inf))
        worst = int(excess.argmax())
        index = tuple(int(each) for each in torch.unravel_index(torch.tensor(worst), excess.shape))
        row, token = _row_of(batch.scenario.query_lens, index[0])
        where = batch.dimensions
        require(
            False,
            f"{what} of row {row}, query token {token}, head {index[1]} is {found[index].item():.9g}, must be {expected[index].item():.9g} "
            f"within {allowed[index].item():.2g}; {int((~same).sum())} of {same.numel()} values are wrong "
            f"({where.dtype}, head_dim {where.head_dim}, block_size {where.block_size}, {where.layout}; {batch.scenario})",
        )

    def _note(self, feature: str, ulps: torch.Tensor) -> None:
        if ulps.numel():
            self.worst_ulps[feature] = max(self.worst_ulps.get(feature, 0.0), float(ulps.max()))


def poison(cache: torch.Tensor, value: float) -> None:
    """Fill with `value`; integers, which have no NaN, with their largest."""
    if cache.dtype == torch.int8:
        cache.fill_(127)
    elif cache.dtype.itemsize == 1:
        cache.copy_(torch.full_like(cache, math.nan, dtype=torch.float32).to(cache.dtype))
    else:
        cache.fill_(value)


def kv_write(batch: AttentionBatch, cache: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None) -> KVWrite:
    return KVWrite(
        layer=batch.layer,
        key=key,
        value=value,
        kv_cache=cache,
        slot_mapping=slots,
        k_scale=batch.scenario.k_scale,
        v_scale=batch.scenario.v_scale,
    )


def _row_of(query_lens: tuple[int, ...], token: int) -> tuple[int, int]:
    for row, query_len in enumerate(query_lens):
        if token < query_len:
            return row, token
        token -= query_len
    raise AssertionError("a token beyond the batch")
