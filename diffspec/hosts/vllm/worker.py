# SPDX-License-Identifier: Apache-2.0
"""What a DiffSpec launch adds to a vLLM worker of any device: the calls that attach us.

The worker classes themselves are in modules of their own, because a launch on one device must not
import the worker of another.
"""

from __future__ import annotations

import logging
from typing import Any

import vllm

from diffspec.hosts.surface import HostError, require_surface
from diffspec.hosts.unsupported import refusals
from diffspec.hosts.vllm.attached import AttachedSession
from diffspec.hosts.vllm.facts import worker_facts
from diffspec.hosts.vllm.metrics_hook import channel_of
from diffspec.hosts.vllm.sampling_fix import install
from diffspec.hosts.vllm.session import DiffSpecSession
from diffspec.settings import ConfigError, DiffSpecSettings
from diffspec.telemetry import ChannelWriter

logger = logging.getLogger("vllm.diffspec")


def attach(
    worker: Any,
    *,
    memory: int,
    drafter_class: type | None = None,
    session_class: type[AttachedSession] = DiffSpecSession,
) -> AttachedSession:
    """Attach DiffSpec to the drafter a worker has just built.

    Args:
        worker: a worker whose ``init_device`` has returned.
        memory: bytes vLLM was given on this device.
        drafter_class: what the drafter must be; vLLM's ``EagleProposer`` if None.
        session_class: what to attach to it.

    Raises:
        HostError: the runner or drafter is not the one whose surface was checked.
        ConfigError: the flags came out as something DiffSpec refuses.
    """
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.spec_decode.eagle import EagleProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    runner = worker.model_runner
    drafter = getattr(runner, "drafter", None)
    wanted = drafter_class or EagleProposer
    if not isinstance(runner, GPUModelRunner) or type(drafter) is not wanted:
        raise HostError(
            f"DiffSpec attaches to model runner V1 with {wanted.__name__}, not to "
            f"{type(runner).__name__} with {type(drafter).__name__}"
        )
    require_surface(("worker", "load"), platform=worker.device.type)
    if problems := refusals(worker_facts(worker.vllm_config), ("config",)):
        raise ConfigError(*problems)
    install(vllm.__version__, worker.device.type, rejection_sampler)
    config = worker.vllm_config.speculative_config
    settings = DiffSpecSettings.from_payload(config.diffspec)
    session = session_class(drafter, runner, settings, memory=memory)
    leads = get_tp_group().rank_in_group == 0  # what the others would say is the same or nothing
    session.telemetry = ChannelWriter(channel_of(config) if leads else None)
    return session


class AttachesDiffSpec:
    """Goes before vLLM's worker class of one device in the bases of ours.

    Attributes:
        diffspec: the session; exists once ``init_device`` has returned.
    """

    diffspec: AttachedSession

    def memory_given(self) -> int:
        """Bytes vLLM was given on this device; known after ``init_device``."""
        raise NotImplementedError

    def init_device(self) -> None:
        """Build the runner as usual, then attach.

        From here on the host's ``load_model`` comes to the session, which allocates every buffer
        of ours: before the host measures what is left for the KV cache, and where it has loaded
        weights. So our memory is counted as that of the weights.
        """
        super().init_device()  # type: ignore[misc]
        self.diffspec = self.attach()

    def attach(self) -> AttachedSession:
        """Attach to the drafter that exists now; hosts with a drafter of their own say which."""
        return attach(self, memory=self.memory_given())

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the KV cache as usual, then take the draft's pages."""
        super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
        self.diffspec.bind_pages(kv_cache_config)

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as usual, then measure what verifying a few rows takes."""
        result = super().compile_or_warm_up_model()  # type: ignore[misc]
        self.diffspec.sweep()
        return result

    def execute_model(self, scheduler_output: Any) -> Any:
        """Learn who left before the step runs."""
        self.diffspec.before_step(scheduler_output)
        return super().execute_model(scheduler_output)  # type: ignore[misc]
