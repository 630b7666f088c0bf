# SPDX-License-Identifier: Apache-2.0
"""Text to make prompts of, without a file: the ledger of a port, different for every number."""

from __future__ import annotations

import random

_WHO = (
    "miller,carpenter,captain,widow,clerk,fisherman,baker,notary,smith,pilot,weaver,surgeon,"
    "merchant,porter,harbourmaster,schoolmaster,glazier,cooper,ropemaker,innkeeper"
)
_HOW = (
    "careful,tired,cheerful,young,impatient,silent,honest,stubborn,elderly,suspicious,generous,"
    "absent-minded,punctual,talkative,newly-wed"
)
_DID = (
    "delivered,sold,borrowed,inspected,promised,returned,counted,lost,weighed,bought,shipped,"
    "exchanged,ordered,stored"
)
_WHAT = (
    "barley,copper,candles,salt,wool,timber,cider,nails,lamp oil,canvas,rope,honey,charcoal,tar,"
    "glass,linen,pepper,leather,slate"
)
_HOLDS = "barrels,crates,baskets,sacks,bundles,jars,chests,bales"
_WHERE = (
    "north gate,old mill,customs house,lower quay,chapel,market square,shipyard,salt store,"
    "lighthouse,ferry landing,brick kiln,town hall"
)
_THEN = (
    "before the bells rang,although nobody had asked,and wrote the sum into the book,"
    "while the rain kept on,for half of the usual price,as had been agreed in the spring,"
    "and was paid in silver,without a word about the debt"
)


def ledger(number: int, characters: int) -> str:
    """At least ``characters`` characters of plain sentences; equal numbers give equal text.

    Names and figures make it unlikely that two sentences are alike, so that a passage that comes
    again has one source.
    """
    rng = random.Random(number)

    def one(words: str) -> str:
        return rng.choice(words.split(","))

    sentences: list[str] = []
    size = 0
    while size < characters:
        amount, day, house = rng.randint(2, 990), rng.randint(1, 9999), rng.randint(1, 400)
        sentence = (
            f"On day {day} the {one(_HOW)} {one(_WHO)} of house {house} {one(_DID)} {amount} "
            f"{one(_HOLDS)} of {one(_WHAT)} at the {one(_WHERE)} {one(_THEN)}."
        )
        sentences.append(sentence)
        size += len(sentence) + 1
    return " ".join(sentences)
