# SPDX-License-Identifier: Apache-2.0
"""What tensor-parallel ranks do together in a drafting cycle.

Each rank holds some heads and a part of every parallel layer, and a *collective* call returns on
one rank only after all of them have made it. So all ranks must make the same calls in the same
order, whatever happens to one of them: otherwise the others wait for it, and the target with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from diffspec.proposer.batch import IntArray
from diffspec.proposer.head import DraftParts

#: A collective call: which one, and the sizes that the ranks must have in common.
Call = tuple[str | int, ...]


class Ranks(Protocol):
    """The ranks that hold a model together, as a host adapter provides them; at least two.

    Attributes:
        rank: this one; 0 decides.
        size: how many there are.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def add(self, values: IntArray) -> None:
        """Put the sum over ranks in place of ``values`` ``[n]``, numbers on the host."""

    def gather(self, x: Tensor) -> Tensor:
        """``x`` ``[n, …]`` of all ranks, ``[size · n, …]`` in their order, on each of them."""


class OutOfStep(SystemExit):
    """This rank cannot make the calls the others wait for.

    Ends the process, because a host that sees one of its processes end stops the others; an
    exception it may well keep to itself, and wait for ever.
    """


class Collectives:
    """Counts the collective calls of a step, so that a rank which failed can make the rest of them.

    Args:
        parts: the draft's; ``embed``, ``output``, ``mlp`` and ``logits`` are collective.
        hidden: elements of a row of the draft.
        dtype: of such a row.

    Attributes:
        parts: the same, with counting in it; to be called instead.
        issued: calls of this step that have returned.
    """

    def __init__(
        self, ranks: Ranks, parts: DraftParts, *, hidden: int, dtype: torch.dtype, device: Any
    ) -> None:
        self.ranks = ranks
        self.issued: list[Call] = []
        self._hidden, self._dtype, self._device = hidden, dtype, device
        self.parts = replace(
            parts,
            embed=self._counted("embed", parts.embed),
            output=self._counted("output", parts.output),
            mlp=self._counted("mlp", parts.mlp),
            logits=self._counted("logits", parts.logits),
        )

    def _counted(self, name: str, call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def counted(x: Tensor) -> Tensor:
            result = call(x)
            self.issued.append((name, x.shape[0]))
            return result

        return counted

    def add_masses(self, masses: Tensor) -> None:
        """Put the sum over ranks in place of ``masses`` ``[r, chunks]``.

        Gathered and then added in the same order everywhere: selections must be the same on all
        ranks, and the sums of an all-reduce need not be, to the last bit.
        """
        every = self.ranks.gather(masses)
        self.issued.append(("masses", *masses.shape))
        torch.sum(every.view(self.ranks.size, *masses.shape), dim=0, out=masses)

    def begin(self) -> None:
        """A step begins."""
        self.issued.clear()

    def complete(self, calls: list[Call]) -> None:
        """Make those of a step's ``calls`` that were not made yet, with zeros.

        Raises:
            OutOfStep: other calls were made, or one fails again.
        """
        done = len(self.issued)
        if self.issued != calls[:done]:
            raise OutOfStep(f"DiffSpec: collective calls {self.issued} where {calls} were due")
        for call in calls[done:]:
            try:
                self._issue(*call)
            except Exception as error:
                raise OutOfStep(f"DiffSpec: {call} fails even with zeros: {error}") from error

    def _issue(self, name: str | int, *shape: Any) -> None:
        if name == "masses":
            self.add_masses(torch.zeros(shape, device=self._device))
        elif name == "embed":
            self.parts.embed(torch.zeros(shape, dtype=torch.int64, device=self._device))
        else:
            heads = self.parts.query_heads * self.parts.head_dim
            width = heads if name == "output" else self._hidden
            row = torch.zeros((*shape, width), dtype=self._dtype, device=self._device)
            getattr(self.parts, str(name))(row)
