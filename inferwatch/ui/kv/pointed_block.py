"""What is known of the block under the cursor, or of the several in its cell."""

from collections.abc import Mapping, Sequence

from inferwatch.formatting import counted
from inferwatch.metrics.cache.memory import BlockPicture, BlockState, Holder
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells
from inferwatch.ui.kv.block_cells import HeldBlocks, Ints, states_of

STATE_WORDS = {
    BlockState.FREE: ("free: nothing is in it", "muted"),
    BlockState.CACHED: ("idle-cached: nobody holds it, its content is kept", "cached"),
    BlockState.PRIVATE: ("private", "kv"),
    BlockState.SHARED: ("shared", "shared"),
    BlockState.NULL: ("the engine's null block: nobody can hold it", "muted"),
}
STATE_NAMES = {
    BlockState.SHARED: "shared",
    BlockState.PRIVATE: "private",
    BlockState.CACHED: "idle-cached",
    BlockState.FREE: "free",
    BlockState.NULL: "null",
}
MOST_REFERENCES = 255
"""A map counts no further."""
MOST_TOLD = 8
"""Holders by name; of the others how many there are."""
NAME_WIDTH = 40
MOST_AHEAD = 2
"""Blocks that a request may hold for tokens to come."""


def told_of_blocks(
    held: HeldBlocks,
    blocks: Ints,
    names: Mapping[int, Holder],
    block_tokens: int | None,
) -> Sequence[Line]:
    """Two lines: what is under the cursor, and who holds it."""
    if len(blocks) == 1:
        block = int(blocks[0])
        return (
            _of_one(held.picture, block),
            _holders(held, block, names, block_tokens),
        )
    return (_of_several(held.picture, blocks), _holders_of(held, blocks, names))


def first_holder(held: HeldBlocks, blocks: Ints) -> int | None:
    """Whoever holds most of these blocks, by ordinal."""
    counts = held.counts_in(blocks)
    return held.picture.holders[counts[0][0]] if counts else None


def name_of(ordinal: int, names: Mapping[int, Holder], width: int = NAME_WIDTH) -> str:
    """As people know the request; without its row what the engine counts."""
    holder = names.get(ordinal)
    if holder is None:
        return f"request #{ordinal}"
    return cells(holder.name, width).text.rstrip()


def _of_one(picture: BlockPicture, block: int) -> Line:
    state, references = BlockState(picture.states[block]), picture.references[block]
    words, ink = STATE_WORDS[state]
    line = (
        TextRun("▸ block ", "muted"),
        TextRun(f"{block:,}", "strong"),
        TextRun("  "),
        TextRun(words, ink),
    )
    if not references:
        return line
    least = "≥ " if references == MOST_REFERENCES else ""
    return (
        *line,
        TextRun("  reference count ", "muted"),
        TextRun(f"{least}{references}"),
    )


def _holders(
    held: HeldBlocks,
    block: int,
    names: Mapping[int, Holder],
    block_tokens: int | None,
) -> Line:
    picture = held.picture
    places = [int(each) for each in held.owners[held.blocks == block]]
    line: list[TextRun] = []
    for place in dict.fromkeys(places[:MOST_TOLD]):
        at, of = picture.held[place].index(block), len(picture.held[place])
        ordinal = picture.holders[place]
        whole = _is_whole(names.get(ordinal), of, block_tokens)
        where = _position(at, of, block_tokens if whole else None)
        inked = _inked(name_of(ordinal, names), line)
        line += [*_between(line), inked, TextRun(f" {where}", "muted")]
    return _with_rest(line, len(places) - MOST_TOLD)


def _is_whole(holder: Holder | None, blocks: int, block_tokens: int | None) -> bool:
    """Its blocks are for all its tokens, once: places among them tell tokens.

    With a sliding window some are given back, and several KV-cache groups each have
    blocks for the same tokens.
    """
    if holder is None or holder.tokens is None or not block_tokens:
        return False
    return abs(blocks - holder.tokens / block_tokens) < MOST_AHEAD


def _position(at: int, of: int, block_tokens: int | None) -> str:
    """Where in the request's tokens the block stands."""
    if not block_tokens:
        return f"its block {at + 1:,} of {of:,}"
    first = at * block_tokens
    return f"tokens {first:,}–{first + block_tokens - 1:,}, block {at + 1:,} of {of:,}"


def _of_several(picture: BlockPicture, blocks: Ints) -> Line:
    states = states_of(picture)[blocks]
    parts = [
        (int((states == state).sum()), name) for state, name in STATE_NAMES.items()
    ]
    told = ", ".join(f"{count:,} {name}" for count, name in parts if count)
    first, last = int(blocks.min()), int(blocks.max())
    if last - first + 1 == len(blocks):
        where = f"{first:,}–{last:,}"
    else:
        where = f"{len(blocks):,}, between {first:,} and {last:,}"
    return (
        TextRun("▸ blocks ", "muted"),
        TextRun(where, "strong"),
        TextRun("  "),
        TextRun(told),
    )


def _holders_of(held: HeldBlocks, blocks: Ints, names: Mapping[int, Holder]) -> Line:
    counts = held.counts_in(blocks)
    line: list[TextRun] = []
    for place, count in counts[:MOST_TOLD]:
        inked = _inked(name_of(held.picture.holders[place], names), line)
        blocks_held = TextRun(f" {counted(count, 'block')}", "muted")
        line += [*_between(line), inked, blocks_held]
    return _with_rest(line, len(counts) - MOST_TOLD)


def _inked(name: str, line: Sequence[TextRun]) -> TextRun:
    """The first is the one whose blocks stand out in the map."""
    return TextRun(name, "" if line else "pointed")


def _between(line: Sequence[TextRun]) -> Sequence[TextRun]:
    return [TextRun(" · ", "faint")] if line else []


def _with_rest(line: Sequence[TextRun], rest: int) -> Line:
    more = (TextRun(f" · {rest:,} more", "muted"),) if rest > 0 else ()
    return (TextRun("  "), *line, *more) if line else ()
