# SPDX-License-Identifier: Apache-2.0
"""Verified rows whose projection can wait.

While nobody drafts, nobody reads the canonical cache, and projecting one row costs almost as much
as projecting thirty. So such steps only put their rows aside. They are written, in order, before
anything else is: whoever reads or writes the canonical cache finds it as if nothing had waited.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PendingRows:
    """A buffer of rows, allocated once.

    Args:
        rows: most rows that wait.
        width: elements of a row's features.
        dtype: of the features.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.count = 0
        self._features = torch.zeros((rows, width), dtype=dtype, device=device)
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slots = torch.zeros(rows, dtype=torch.int64, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes held for good."""
        return self._features.nbytes + self._tokens.nbytes + self._slots.nbytes

    def fits(self, rows: int) -> bool:
        """Whether there is room for so many more."""
        return self.count + rows <= self._tokens.shape[0]

    def put(self, token_ids: Tensor, features: Tensor, slots: Tensor) -> bool:
        """Put a step's rows aside; False, and nothing is done, if there is no room.

        Args:
            token_ids: ``[n]``, the token after each row's position.
            features: ``[n, width]``.
            slots: ``[n]``, host slots, any integer type.
        """
        if not self.fits(token_ids.shape[0]):
            return False
        first, last = self.count, self.count + token_ids.shape[0]
        self._features[first:last].copy_(features)
        self._tokens[first:last].copy_(token_ids)
        self._slots[first:last].copy_(slots)
        self.count = last
        return True

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """What waits, oldest first: token ids ``[n]``, features ``[n, width]``, host slots ``[n]``.
        Valid until the next :meth:`put`."""
        n = self.count
        return self._tokens[:n], self._features[:n], self._slots[:n]

    def clear(self) -> None:
        """Nothing waits any more."""
        self.count = 0
