# SPDX-License-Identifier: Apache-2.0
"""DiffSpec on one drafter of a vLLM V1 runner: all but what a step's batch is made of.

vLLM and the hosts built on it load, size, warm up and schedule in the same way; how a verified
step is handed to the drafter, and what pages look like, differs. Each host has a class of its own
with that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from diffspec.compact_kv.canonical import CanonicalCache
from diffspec.compact_kv.pages import KeyPages
from diffspec.hosts.surface import HostError
from diffspec.hosts.vllm.draft_parts import Rotate, build_parts, build_rope, check_parts
from diffspec.hosts.vllm.memory import build_cycle
from diffspec.hosts.vllm.query_tap import QueryTap
from diffspec.hosts.vllm.ranks import tensor_parallel_ranks
from diffspec.hosts.vllm.target_layer import (
    find_scored_layer,
    group_of,
    read_key_pages,
    require_readable,
)
from diffspec.proposer.batch import StepBatch
from diffspec.proposer.cycle import DraftingCycle
from diffspec.proposer.head import DraftHead
from diffspec.settings import DiffSpecSettings
from diffspec.telemetry import ChannelWriter

logger = logging.getLogger("vllm.diffspec")

#: Seconds between two reports of the numbers while requests run, and once one has ended. Whatever
#: ended is reported at once where nothing else is left to run.
PUBLISH_S, ENDED_S = 1.0, 0.1
#: Times that each number of rows is run at start.
SWEEPS = 5

_ATTACHED = "_diffspec_session"


class AttachedSession:
    """Everything DiffSpec keeps for one drafter, and the methods bound onto it.

    Args:
        drafter: the host's own EAGLE proposer; stays what it is, with the methods in
            :attr:`BOUND` as instance attributes.
        runner: the V1 model runner that owns it.
        settings: validated settings.
        memory: bytes vLLM was given on this device.

    Raises:
        HostError: the drafter has a session already.
    """

    #: The drafter's methods that are replaced, by the session's of the same names.
    BOUND: ClassVar[tuple[str, ...]] = ()
    tap_class: ClassVar[type[QueryTap]] = QueryTap

    def __init__(
        self, drafter: Any, runner: Any, settings: DiffSpecSettings, *, memory: int
    ) -> None:
        if hasattr(drafter, _ATTACHED):
            raise HostError("DiffSpec is attached to this drafter already")
        self.drafter, self.runner, self.settings, self.memory = drafter, runner, settings, memory
        self.depth: int = drafter.speculative_config.num_speculative_tokens
        self._host = {name: getattr(drafter, name) for name in self.BOUND}
        for name in self.BOUND:
            setattr(drafter, name, getattr(self, name))
        setattr(drafter, _ATTACHED, self)
        self._cycle: DraftingCycle | None = None
        self._tap: QueryTap | None = None
        self._target_group = self._draft_group = 0
        self._width = 0
        # When the running step came and its verification began, when the last one ended, when the
        # numbers were reported and whether a request has ended since; in seconds, 0 at first.
        self._came = self._begun = self._ended = self._published = 0.0
        self._owed = False
        #: Where the numbers go; the worker puts the launch's own in its place.
        self.telemetry = ChannelWriter(None)
        self._lift_length_limit()

    @property
    def cycle(self) -> DraftingCycle:
        """The proposer; exists once the draft is loaded."""
        if self._cycle is None:
            raise HostError("the draft is not loaded yet")
        return self._cycle

    @property
    def tap(self) -> QueryTap:
        """The query tap; exists once the draft is loaded."""
        if self._tap is None:
            raise HostError("the draft is not loaded yet")
        return self._tap

    def detach(self) -> None:
        """Give the drafter back as it was (for tests)."""
        for name in self.BOUND:
            delattr(self.drafter, name)
        delattr(self.drafter, _ATTACHED)
        if self._tap is not None:
            self._tap.remove()
        self.telemetry.close()

    # Hooks in the order the host calls them.

    def load_model(self, target_model: Any) -> None:
        """Let the host load the draft, then take its parts, check them, allocate, tap."""
        self._host["load_model"](target_model)
        drafter, config = self.drafter, self.drafter.vllm_config
        model, dtype = drafter.model, config.model_config.dtype
        head = DraftHead(build_parts(model))
        check_parts(model, head, dtype)
        name, layer = find_scored_layer(config, drafter._draft_attn_layer_names)
        self._scored = name
        self.require_readable(layer)
        max_num_seqs = config.scheduler_config.max_num_seqs
        with torch.inference_mode(False):
            self._cycle = build_cycle(
                self.settings,
                head,
                build_rope(model, self.settings.token_budget, dtype, self.rotation()),
                depth=self.depth,
                memory=self.memory,
                max_num_seqs=max_num_seqs,
                max_model_len=drafter.max_model_len,
                scored_layer=layer,
                block_size=self.page_tokens(layer),
                feature_width=self._feature_width(),
                allowed_depths=self.allowed_depths(),
                least_depth=self.least_depth(),
                ranks=tensor_parallel_ranks(),
                hidden=model.model.embed_tokens.weight.shape[-1],
                dtype=dtype,
                device=drafter.device,
            )
            self._tap = self.tap_class(
                layer,
                max_requests=max_num_seqs,
                rows_per_request=self.depth + 1,
                heads=layer.num_heads,
                head_dim=layer.head_size,
                dtype=dtype,
                device=drafter.device,
            )
        buffers = {**self.cycle.nbytes, "query tap": self._tap.nbytes}
        slots = self.cycle.slots.count
        if slots < max_num_seqs:
            logger.warning(
                "DiffSpec: memory for %d drafting slots, --max-num-seqs is %d: with more requests "
                "at once the others go on without drafts; give the KV cache more memory, lower "
                "diffspec_token_budget or lower --max-num-seqs",
                slots,
                max_num_seqs,
            )
        logger.info(
            "DiffSpec: %d drafting slots; buffers %s, %.1f MiB in all; scoring by %s",
            slots,
            ", ".join(f"{what} {size / 2**20:.1f} MiB" for what, size in buffers.items()),
            sum(buffers.values()) / 2**20,
            name,
        )

    def dummy_run(self, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Stand in for the host's warm-up of a draft pass we never take: project as many rows.

        Before there are pages the host measures memory: it then sees the largest draft step too.
        """
        drafter, head = self.drafter, self.cycle.head
        features = torch.zeros(
            (num_tokens, self._feature_width()), dtype=drafter.dtype, device=drafter.device
        )
        ids = torch.zeros(num_tokens, dtype=torch.int64, device=drafter.device)
        projection = head.project(ids, head.parts.combine(features))
        if not self.cycle.bound:
            self.cycle.rehearse(projection)

    def bind_pages(self, kv_cache_config: Any) -> None:
        """The host has allocated its KV cache: take the draft's pages and read the target's.

        Raises:
            HostError: a page layout is not understood.
        """
        drafter = self.drafter
        layers = drafter.vllm_config.compilation_config.static_forward_context
        (draft_name,) = drafter._draft_attn_layer_names
        parts = self.cycle.head.parts
        tables = self.runner.input_batch.block_table
        self._draft_group = drafter.kv_cache_gid
        try:
            canonical = self.draft_pages(
                layers[draft_name].kv_cache,
                # Not the drafter's own number: with several groups a host may leave there the
                # group's whole block, of which a page of the table is a part.
                block_size=tables[self._draft_group].block_size,
                heads=parts.kv_heads,
                head_dim=parts.head_dim,
            )
            if canonical.dtype != drafter.vllm_config.model_config.dtype:
                raise ValueError(f"draft pages hold {canonical.dtype}, not the model's type")
            self._target_group = group_of(kv_cache_config, self._scored)
            pages = self.target_pages(layers[self._scored], tables[self._target_group].block_size)
            self.cycle.working_set.scorer.bind(pages)
        except ValueError as error:
            raise HostError(str(error)) from error
        self.cycle.bind(canonical)
        self._lift_length_limit()
        logger.info(
            "DiffSpec: draft keeps unrotated K and V in its %d own pages of %d tokens; target "
            "keys are read as %s pages; kernels: scoring by %s, attention by %s",
            canonical.num_blocks,
            canonical.block_size,
            pages.layout,
            self.cycle.working_set.scorer.kernels,
            self.cycle.working_set.working.kernels,
        )

    def sweep(self) -> None:
        """Measure, before serving, what verifying few rows takes without any context: a first
        hint for the depth policy, replaced by what served steps show.

        Two more than the K + 1 rows there can be: fewer rows are taken to cost no more than these,
        so that the deepest depth, too, is not judged by one disturbed measurement.
        """
        if not self.settings.adaptive_profile:
            return
        took: dict[int, float] = {}
        # The first run may compile something, and a passing load should meet all rows alike.
        for rows in [*range(1, self.depth + 4)] * SWEEPS:
            begin = time.perf_counter()
            hidden = self.runner._dummy_run(rows)[0]
            hidden[:1, :1].cpu()  # waits for the device; nothing is served yet
            seconds = time.perf_counter() - begin
            took[rows] = min(seconds, took.get(rows, seconds))
        for rows, seconds in took.items():
            self.cycle.policy.seed(rows, seconds)
        logger.info(
            "DiffSpec: without context, verifying 1 to %d rows takes %s ms; depth adapts to what "
            "served steps take",
            self.depth + 3,
            " / ".join(f"{1e3 * seconds:.1f}" for seconds in took.values()),
        )

    def before_step(self, scheduler_output: Any) -> None:
        """Forget requests that ended and distrust caches of requests that were preempted."""
        self._came = time.perf_counter()
        if self._cycle is not None:
            self._catch_up(scheduler_output)
        self._begun = time.perf_counter()

    def _catch_up(self, scheduler_output: Any) -> None:
        assert self._cycle is not None
        if scheduler_output.finished_req_ids or scheduler_output.preempted_req_ids:
            # Their pages are free since this was scheduled, and this step may write to them.
            self._cycle.flush()
        for request_id in scheduler_output.finished_req_ids:
            self._cycle.finished(request_id)
            self._owed = True
        idle = self._owed and not scheduler_output.total_num_scheduled_tokens
        if idle or self._came - self._published > (ENDED_S if self._owed else PUBLISH_S):
            self._publish()
        for request_id in scheduler_output.scheduled_cached_reqs.resumed_req_ids:
            self._cycle.slots.drop(request_id)

    def _publish(self) -> None:
        self._published, self._owed = self._came, False
        if not self.telemetry.open:
            return
        try:
            self.telemetry.write(self.cycle.numbers())
        except Exception as error:
            self.cycle.faults.record("reporting", error)

    def _feature_width(self) -> int:
        # Asked first at load: some hosts wrap the model later.
        if not self._width:
            # Absent where a draft takes the target's last hidden state as it is.
            width = getattr(self.drafter.model.model, "fc_input_size", None)
            self._width = int(width or self.drafter.vllm_config.model_config.get_hidden_size())
        return self._width

    def require_readable(self, layer: Any) -> None:
        """Refuse a scored layer whose backend is not known; see :func:`require_readable`."""
        require_readable(layer)

    def page_tokens(self, layer: Any) -> int:
        """Tokens per page of ``layer``, at the granularity of its block table."""
        return int(self.drafter.vllm_config.cache_config.block_size)

    def draft_pages(self, kv_cache: Any, **sizes: int) -> CanonicalCache:
        """Our rows in the draft layer's pages; see :class:`CanonicalCache` for ``sizes``.

        Raises:
            ValueError: the pages are of a shape that is not understood.
        """
        return CanonicalCache(kv_cache, **sizes)

    def target_pages(self, layer: Any, block_size: int) -> KeyPages:
        """The keys of the scored layer; see :func:`read_key_pages`."""
        return read_key_pages(layer, block_size)

    def rotation(self) -> Rotate | None:
        """How the draft's rotary embedding is asked for comparison; see :func:`build_rope`."""
        return None

    def least_depth(self) -> int:
        """What every request drafts at least, whatever pays."""
        return 0

    def allowed_depths(self) -> tuple[int, ...] | None:
        """The depths for which there are decode graphs; None where any depth runs alike.

        Where whole decode steps are captured graphs, there is one for depth K; depth 0 runs
        otherwise, as its own measured cost.
        """
        mode = self.drafter.vllm_config.compilation_config.cudagraph_mode
        if mode is None or not mode.has_full_cudagraphs():
            return None
        return (0, self.depth)

    def _put_aside(self, b: int, features: Tensor, next_token_ids: Tensor, metadata: Any) -> bool:
        """Have a step of ``b`` requests of one row each rest; whether it could."""
        if not self.cycle.rests(self.runner.input_batch.req_ids[:b]):
            return False
        if not self.cycle.rest(next_token_ids[:b], features[:b], metadata.slot_mapping[:b]):
            return False
        self.tap.saw(b)  # asked once per step
        return True

    def _run(
        self, count: int, slots: Tensor, build: Callable[[], StepBatch | None]
    ) -> list[list[int]]:
        """Draft for ``count`` requests; never raises.

        ``build`` makes the step's batch, or returns None if the step needs none; ``slots`` ``[n]``
        are the host slots that are lost if it fails.
        """
        begin, gap = time.perf_counter(), self._came - self._ended
        try:
            batch = build()
        except Exception as error:
            return self.cycle.unusable(count, slots, error)
        if batch is None:
            self._ended = time.perf_counter()
            self.cycle.timed_rest(verify=begin - self._begun, propose=self._ended - begin)
            return [[] for _ in range(count)]
        drafts = self.cycle.run(batch)
        self._ended = time.perf_counter()
        verify = begin - self._begun
        # Scheduling takes less than verifying; what took longer was waiting for work.
        self.cycle.timed(
            verify=verify, propose=self._ended - begin, gap=gap if gap < verify else None
        )
        return drafts

    def _lift_length_limit(self) -> None:
        # Past the draft's own length the host would silently send dummy drafts for the whole
        # batch; local positions make that limit void, and depth is clamped at max_model_len.
        self.runner.effective_drafter_max_model_len = self.runner.max_model_len + self.depth + 1
