"""SentencePiece-style BPE (`tokenizer.ggml.model = llama`) from a GGUF vocabulary. Cuts no added tokens.

Such a vocabulary has scores instead of merges: the two neighbours whose union has the highest score are joined, the
leftmost pair on a tie, until nothing joins; a character that is no token becomes its bytes. Source: Kudo and Richardson
2018, the BPE model; llama.cpp's loader for the conventions of the file.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from sojourn.errors import BadModelFile
from sojourn.frontend.gguf_vocabulary import GGUFModel, GGUFVocabulary, TokenType
from sojourn.frontend.vocabulary import byte_token_bytes

SPACE = "\u2581"  # how SentencePiece writes a space
_MAX_JOINTS = 64
_SPACE_INSIDE = re.compile(f"[^{SPACE}]{SPACE}")


def sentencepiece_model(metadata: Mapping[str, Any], tokens: GGUFVocabulary) -> GGUFModel:
    """Raises BadModelFile without scores or without the 256 byte tokens."""
    if tokens.scores is None:
        raise BadModelFile("the GGUF file has no tokenizer.ggml.scores, which a SentencePiece vocabulary needs")
    # Control tokens take no part in merging: text that spells one is plain text to this model.
    vocabulary = {text: n for text, n in tokens.ids.items() if tokens.types[n] != TokenType.CONTROL}
    byte_ids = [vocabulary.get(f"<0x{byte:02X}>", -1) for byte in range(256)]
    if (missing := byte_ids.count(-1)) > 0:
        raise BadModelFile(f"the vocabulary has no token for byte 0x{byte_ids.index(-1):02X} ({missing} are missing)")
    # A user-defined token is cut out of the text before merging, so merging can only make one whose spaces are escaped.
    words = [
        text
        for text, n in vocabulary.items()
        if len(text) > 1
        and (tokens.types[n] == TokenType.NORMAL or (tokens.types[n] == TokenType.USER_DEFINED and SPACE in text))
    ]
    return GGUFModel(
        merge=_merging(vocabulary, words, tokens.scores, byte_ids),
        bytes_of=lambda token_id: _bytes_of(tokens, token_id),
        escape_spaces=True,
        add_space_prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
    )


def _merging(
    vocabulary: Mapping[str, int], words: Sequence[str], scores: Sequence[float], byte_ids: Sequence[int]
) -> Callable[[str], list[int]]:
    """The library's BPE where its ordered merges say the same as the scores, which is nearly always; else the slow way.

    `words`: the tokens that merging may make.
    """
    same_scores = len({scores[vocabulary[text]] for text in words}) < len(words)
    if same_scores or not vocabulary.keys() >= set("".join(words)):
        return lambda text: merge_by_score(text, vocabulary, scores, byte_ids)
    model = models.BPE(vocab=dict(vocabulary), merges=ordered_merges(vocabulary, scores), byte_fallback=True)
    backend = Backend(model)
    if (pattern := word_pattern(words)) is not None:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return lambda text: list(backend.encode(text, add_special_tokens=False).ids)


def ordered_merges(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to cut a token into two tokens, ranked by the token's score, the longer left part first."""
    merges: list[tuple[str, str]] = []
    for token in sorted(vocabulary, key=lambda text: -scores[vocabulary[text]]):
        for n in range(len(token) - 1, 0, -1):
            if (left := token[:n]) in vocabulary and (right := token[n:]) in vocabulary:
                merges.append((left, right))
    return merges


def word_pattern(tokens: Iterable[str]) -> str | None:
    """Pieces of escaped text that no merge can cross, so that the library can merge and cache them one by one.

    A piece begins at a space, unless a token with a space inside fits there. None if too many tokens are like that.
    """
    word = f"{SPACE}+[^{SPACE}]*"
    joints = [
        f"(?<={re.escape(token[: at.start() + 1])})(?={re.escape(token[at.start() + 1 :])})"
        for token in tokens
        for at in _SPACE_INSIDE.finditer(token)
    ]
    if len(joints) > _MAX_JOINTS:
        return None
    more = f"(?:(?:{'|'.join(joints)}){word})*" if joints else ""
    return f"(?:{word}|[^{SPACE}]+){more}"


def merge_by_score(
    text: str, vocabulary: Mapping[str, int], scores: Sequence[float], byte_ids: Sequence[int]
) -> list[int]:
    """Ids of `text` by the definition: O(n log n) in Python, exact for any scores.

    The slow twin of the library's BPE.
    """
    symbols = list(text)
    before = list(range(-1, len(symbols) - 1))
    after = [*range(1, len(symbols)), -1]
    # (-score, left, right, union): the best and leftmost comes first
    candidates: list[tuple[float, int, int, str]] = []

    def consider(left: int, right: int) -> None:
        if (
            left >= 0
            and right >= 0
            and (token_id := vocabulary.get(union := symbols[left] + symbols[right])) is not None
        ):
            heapq.heappush(candidates, (-scores[token_id], left, right, union))

    for n in range(1, len(symbols)):
        consider(n - 1, n)
    while candidates:
        _, left, right, union = heapq.heappop(candidates)
        if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != union:
            continue  # one of the two has been joined to another neighbour since
        symbols[left], symbols[right] = union, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        consider(before[left], left)
        consider(left, after[left])
    ids: list[int] = []
    for symbol in filter(None, symbols):
        token_id = vocabulary.get(symbol)
        ids += [byte_ids[byte] for byte in symbol.encode()] if token_id is None else [token_id]
    return ids


def _bytes_of(tokens: GGUFVocabulary, token_id: int) -> bytes:
    text = tokens.texts[token_id]
    match tokens.types[token_id]:
        case TokenType.BYTE:
            return byte_token_bytes(text)
        case TokenType.NORMAL:
            return text.replace(SPACE, " ").encode()
        case TokenType.UNUSED | TokenType.UNDEFINED:
            return b""
    return text.encode()
