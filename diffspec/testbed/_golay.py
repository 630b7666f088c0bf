# SPDX-License-Identifier: Apache-2.0
"""Words of the extended binary Golay code [24, 12, 8], used as well separated token codes.

Any two of its 4 096 words differ in at least 8 of 24 places. Written as +1/-1 vectors, two distinct
words therefore have a normalised inner product of at most (24 - 2 * 8) / 24 = 1/3, which bounds
every confusion in the recall pair. (M. J. E. Golay, "Notes on digital coding", 1949.)
"""

from __future__ import annotations

import random

import torch

CODE_LENGTH = 24
MESSAGE_BITS = 12
CODE_SIZE = 2**MESSAGE_BITS
MAX_CORRELATION = 1 / 3

# x^11 + x^9 + x^7 + x^6 + x^5 + x + 1 generates the cyclic [23, 12, 7] code; lowest degree first.
_GENERATOR = (1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1)


def golay_codes(count: int, seed: int) -> torch.Tensor:
    """Return `count` distinct code words, chosen and ordered by `seed`.

    Returns:
        `[count, 24]`, float32, entries +1 and -1.

    Raises:
        ValueError: if `count` is not in 1..4096.
    """
    if not 1 <= count <= CODE_SIZE:
        raise ValueError(f"the code has {CODE_SIZE} words; {count} were asked for")
    basis = torch.zeros(MESSAGE_BITS, CODE_LENGTH, dtype=torch.int64)
    for degree in range(MESSAGE_BITS):
        basis[degree, degree : degree + len(_GENERATOR)] = torch.tensor(_GENERATOR)
    # An overall parity bit turns [23, 12, 7] into [24, 12, 8].
    basis[:, -1] = basis.sum(dim=1) % 2

    chosen = torch.tensor(random.Random(seed).sample(range(CODE_SIZE), count))
    message = chosen[:, None] >> torch.arange(MESSAGE_BITS) & 1
    return 1.0 - 2.0 * (message @ basis % 2).float()
