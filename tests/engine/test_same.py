"""Scripts that compare before and after find what is planted."""

import same_numbers
import same_surface
import torch


def test_a_changed_bit_a_missing_and_a_new_hash_are_found() -> None:
    weight = torch.arange(4.0)
    changed = weight.clone().view(torch.int32).bitwise_xor(torch.tensor([0, 0, 1, 0], dtype=torch.int32))
    before = {"a": same_numbers.hashed([("w", weight)]), "gone": "1", "kept": "2"}
    after = {"a": same_numbers.hashed([("w", changed.view(torch.float32))]), "new": "1", "kept": "2"}
    assert [line.partition(":")[0] for line in same_numbers.differences(before, after)] == ["a", "gone", "new"]
    assert not same_numbers.differences(before, before)


def test_a_missing_option_is_told_apart_from_a_new_one() -> None:
    before = {"par4d train": ["--grid", "--old"], "page": ["h1 Page"]}
    after = {"par4d train": ["--grid", "--new"], "page": ["h1 Page"]}
    assert same_surface.differences(before, after) == ["- par4d train: --old", "+ par4d train: --new"]
