"""Windows in blocks against windows in tokens, for any sizes; and the tables that empty from the front."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treadle.engine.kv.block_table import NO_BLOCK, BlockTable
from treadle.engine.kv.block_window import BlockWindow

WINDOWS = st.builds(
    BlockWindow,
    window=st.integers(1, 40),
    block_tokens=st.sampled_from([1, 2, 4, 32]),
    step_tokens=st.integers(1, 20),
)


def first_seen(window: BlockWindow, position: int) -> int:
    return max(0, position + 1 - window.window)


@given(WINDOWS, st.integers(0, 200))
def test_what_the_next_tokens_see_is_held_and_so_is_what_the_end_of_the_prompt_needs(
    window: BlockWindow, num_computed: int
) -> None:
    first = window.first_held(num_computed)
    assert first * window.block_tokens <= first_seen(window, num_computed)
    if num_computed:  # the block that holds the last token may have to be computed again
        num_kept = (num_computed - 1) // window.block_tokens
        assert first <= max(0, num_kept - window.num_before)


@given(WINDOWS, st.integers(0, 200))
def test_a_request_never_needs_more_than_the_most(window: BlockWindow, num_computed: int) -> None:
    end = num_computed + window.step_tokens
    num_blocks = -(-end // window.block_tokens) - window.first_held(num_computed)
    assert num_blocks <= window.most_held
    # And not less, somewhere: two steps further on the most is needed as soon as nothing is before the beginning.
    tokens = range(1000, 1000 + window.block_tokens)
    needed = [-(-(n + window.step_tokens) // window.block_tokens) - window.first_held(n) for n in tokens]
    assert max(needed) == window.most_held


@given(WINDOWS, st.lists(st.booleans(), max_size=60))
def test_a_request_goes_on_where_all_in_sight_is_there(window: BlockWindow, is_there: list[bool]) -> None:
    def is_usable(num_blocks: int) -> bool:
        first = first_seen(window, num_blocks * window.block_tokens) // window.block_tokens
        return all(is_there[first:num_blocks])

    expected = max(end for end in range(len(is_there) + 1) if is_usable(end))
    assert window.num_usable(len(is_there), is_there.__getitem__) == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=20), st.integers(0, 3))
def test_a_table_gives_back_each_block_once(moves: list[tuple[int, int]], first: int) -> None:
    table = BlockTable([100, 101], first=first)
    added, dropped = [100, 101], []
    for count, place in moves:
        fresh = [len(added) + 100 + i for i in range(count)]
        table.add(fresh)
        added += fresh
        dropped += table.drop_before(min(place, len(table.block_ids)))
        assert dropped + table.held == added
        assert table.num_held == len(table.held)
        assert table.block_ids[: table.first] == [NO_BLOCK] * table.first
        assert table.row[: len(table.block_ids)].tolist() == table.block_ids
