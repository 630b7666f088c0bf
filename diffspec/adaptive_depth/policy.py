# SPDX-License-Identifier: Apache-2.0
"""The seat of the depth policy.

A policy sees, once per verification step, what was drafted and accepted and how long it took, and
answers with one depth per request. :class:`FixedDepth` always drafts ``num_speculative_tokens``;
:class:`~diffspec.adaptive_depth.adaptive.AdaptiveDepth` drafts what pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to draft in this step.

    Attributes:
        depths: ``[m]``, tokens to draft in order to submit them, as far as the draft is sure.
        shadows: ``[m]``, tokens to draft that are only compared with what the target says next;
            0 where a depth is above 0.
        measuring: whether depths are 0 only to learn what a step without drafts costs.
        rest: for so many steps more nothing would be planned for these requests, as long as the
            batch consists of them; no plan has to be asked for meanwhile.
    """

    depths: IntArray
    shadows: IntArray
    measuring: bool = False
    rest: int = 0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a step took, and what it was.

    Attributes:
        requests, rows, context: requests in the verified batch, rows verified, sum of the
            requests' lengths in tokens.
        decoding: whether it read no prompt.
        verify: seconds from the step's start to sampled tokens.
        propose: seconds of proposing.
        draft: of them, seconds of the draft steps.
        gap: seconds between the last step's end and this one's start; None if there was no work
            between them.
        depth: deepest chain drafted by this step's proposing in order to be submitted.
        rebuilt: whether a working cache was gathered anew.
        shadow: deepest shadow chain in it, 0 if there is none.
        secrets: how many shadow chains, if there are any.
    """

    requests: int
    rows: int
    context: int
    decoding: bool
    verify: float
    propose: float
    draft: float
    gap: float | None
    depth: int
    rebuilt: bool
    shadow: int
    secrets: int = 1


class ChainGate(Protocol):
    """Follows the chains of one step while they are drafted."""

    def stop(self, sure: npt.NDArray[np.floating[Any]]) -> bool:
        """Whether to draft no further, after the draft step in which the draft's largest
        probabilities had the logarithms ``sure`` ``[m]``. Asked after every draft step of a device
        where that costs nothing, else never."""

    def cut(self, drafted: IntArray, sure: npt.NDArray[np.floating[Any]]) -> IntArray:
        """How many tokens ``[m]`` of each chain to submit, where ``drafted`` ``[m]`` tokens were
        drafted with ``sure`` ``[m, k]``."""


class DepthPolicy(Protocol):
    """Chooses how many tokens to draft for each request."""

    def observe(
        self, slots: IntArray, drafted: IntArray, accepted: IntArray, beyond: IntArray
    ) -> None:
        """Learn from one verification step.

        Args:
            slots: ``[b]``, slot of each request about which something was learnt.
            drafted: ``[b]``, drafted tokens as scheduled (the host may have cut our proposal).
            accepted: ``[b]``, how many of them were accepted.
            beyond: ``[b]``, whether the first token that was drafted but not submitted was what
                the target said after all those that were: 1 or 0; -1 if there is none, or the
                target did not come so far.
        """

    def gate(self, slots: IntArray, planned: IntArray) -> ChainGate | None:
        """Who follows the chains that are drafted now; None to submit all that was planned.

        Args:
            slots: ``[m]``.
            planned: ``[m]``, tokens to draft and submit; 0 for a shadow chain.
        """

    def observe_shadows(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Shadow drafts of ``slots`` ``[m]`` have been compared: ``drafted`` ``[m]`` tokens, of
        which the first ``accepted`` ``[m]`` were what the target said."""

    def plan(
        self,
        slots: IntArray,
        lengths: IntArray,
        room: IntArray,
        *,
        others: int = 0,
        others_context: int = 0,
    ) -> Plan:
        """What to draft for requests ``[m]``.

        Args:
            slots: ``[m]``.
            lengths: ``[m]``, context lengths in tokens.
            room: ``[m]``, most tokens each may draft: K, or less near the end of its context.
            others: requests beside them that decode without drafting.
            others_context: the sum of their lengths.
        """

    def rested(self, slots: IntArray, steps: int, seconds: float, propose: float) -> int:
        """Requests ``[m]`` had ``steps`` steps without a plan, of ``seconds`` each, ``propose`` of
        them for proposing; see :attr:`Plan.rest`. Returns how many more nothing would be planned
        for."""

    def timed(self, times: StepTimes) -> None:
        """Learn what a step took."""

    def seed(self, rows: int, seconds: float) -> None:
        """Learn, before serving, what verifying ``rows`` rows takes without any context."""

    def forget(self, slot: int) -> None:
        """The request in ``slot`` has ended."""

    def gauges(self, requests: int, context: int) -> Mapping[str, float]:
        """What it believes, by flat key of ``diffspec.metrics``, about a step of ``requests``
        requests of ``context`` tokens in all."""


#: Steps between two reports of a rest at depth 0.
_FIXED_REST = 32


class FixedDepth:
    """Drafts ``depth`` tokens for everyone, always."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def observe(
        self, slots: IntArray, drafted: IntArray, accepted: IntArray, beyond: IntArray
    ) -> None:
        """Nothing to learn."""

    def gate(self, slots: IntArray, planned: IntArray) -> ChainGate | None:
        """All that was planned is submitted."""
        return None

    def observe_shadows(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """There are none."""

    def plan(self, slots: IntArray, lengths: IntArray, room: IntArray, **others: int) -> Plan:
        """The same depth ``[m]`` for each request."""
        rest = 0 if self.depth else _FIXED_REST
        return Plan(np.minimum(room, self.depth), np.zeros_like(slots), rest=rest)

    def rested(self, slots: IntArray, steps: int, seconds: float, propose: float) -> int:
        """Nothing to learn."""
        return 0 if self.depth else _FIXED_REST

    def timed(self, times: StepTimes) -> None:
        """Nothing to learn."""

    def seed(self, rows: int, seconds: float) -> None:
        """Nothing to learn."""

    def forget(self, slot: int) -> None:
        """Nothing was kept."""

    def gauges(self, requests: int, context: int) -> Mapping[str, float]:
        """It believes nothing."""
        return {}
