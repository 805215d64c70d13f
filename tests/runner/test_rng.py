"""The random numbers: SplitMix64 as published, and independent where they should be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinyllm.runner.rng import random_seed, uniform

SEEDS = st.integers(-(2**63), 2**64 - 1)


class SplitMix64:
    """The published generator, with its state."""

    def __init__(self, seed: int) -> None:
        self.state = seed % 2**64

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)


def test_the_reference_is_splitmix64() -> None:
    generator = SplitMix64(1234567)
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [generator.next() for _ in known] == known


@given(SEEDS, st.integers(0, 15), st.integers(0, 40))
def test_a_position_is_that_many_steps_of_the_choice_s_generator(
    seed: int, choice: int, position: int
) -> None:
    starts = SplitMix64(seed)
    for _ in range(choice + 1):
        start = starts.next()
    numbers = SplitMix64(start)
    for _ in range(position + 1):
        bits = numbers.next()
    assert uniform(seed, choice, position) == (bits >> 11) / 2**53


@given(SEEDS, st.integers(0, 15), st.integers(0, 2**20))
def test_numbers_are_in_range(seed: int, choice: int, position: int) -> None:
    assert 0.0 <= uniform(seed, choice, position) < 1.0


def test_seeds_choices_and_positions_are_all_told_apart() -> None:
    numbers = {
        uniform(seed, choice, at) for seed in range(-20, 20) for choice in range(16) for at in range(50)
    }
    assert len(numbers) == 40 * 16 * 50


def test_numbers_fill_the_unit_interval_evenly() -> None:
    counts = [0] * 20
    for seed in range(200):
        for position in range(100):
            counts[int(uniform(seed, seed % 3, position) * 20)] += 1
    expected = 200 * 100 / 20
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001


def test_random_seeds_differ_and_fit_the_field() -> None:
    seeds = {random_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
