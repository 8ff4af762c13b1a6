"""Makes prompts: word lists from a seeded generator, so that every engine is given the same text. Reads nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

# Frequent English nouns: one token each in most vocabularies, so words and tokens are nearly the same number.
NOUNS = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community name"
)
WORDS = NOUNS.split()


def random_words(generator: random.Random, count: int) -> str:
    return " ".join(generator.choice(WORDS) for _ in range(count))


def word_prompts(generator: random.Random, *, words: int, spread: float, prefix_words: int = 0) -> Iterator[str]:
    """Endless prompts of `words` words, each within `spread` (0.5: half to one and a half times as many).

    With `prefix_words` they all begin with the same words.
    """
    prefix = random_words(generator, prefix_words) + " " if prefix_words else ""
    while True:
        yield prefix + random_words(generator, max(1, int(words * generator.uniform(1 - spread, 1 + spread))))
