"""How much of the gradient is summed over data at once, where that isn't given."""

import pytest

from engine.batch import Batch
from engine.grid import Grid
from engine.models.choice import ModelChoice
from engine.overlap.flags import ALL, HOP_S, LEAST_BYTES, Overlap, bucket_bytes
from engine.training.checks import checked
from engine.training.config import TrainConfig


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_few_ranks_take_the_least(ranks: int) -> None:
    assert bucket_bytes(ranks) == pytest.approx(LEAST_BYTES)
    assert bucket_bytes(ranks, link_bytes_per_s=125e6) == pytest.approx(LEAST_BYTES)


@pytest.mark.parametrize(("link", "devices"), [(100e9, 8), (25e9, 1), (200e9, 4)])
def test_of_a_ring_over_many_ranks_a_fifth_is_latency(link: float, devices: int) -> None:
    ranks, share = 2048, link / devices
    num_bytes = bucket_bytes(ranks, link, devices)
    latency, transfer = HOP_S, num_bytes / (ranks * share)
    assert latency / (latency + transfer) == pytest.approx(0.2)


def _bucket(overlap: Overlap, data: int) -> float:
    config = TrainConfig(
        model=ModelChoice(model="gpt-test"),
        batch=Batch(data),
        data="synthetic",
        grid=Grid(data=data),
        overlap=overlap,
        link_bytes_per_s=100e9,
        devices_per_node=8,
    )
    found: float = checked(config, data).as_options()["bucket_bytes"]
    return found


def test_a_run_takes_and_records_what_suits_its_ranks_and_links_unless_it_is_told() -> None:
    assert _bucket(ALL, 1024) == pytest.approx(bucket_bytes(1024, 100e9, 8))
    assert _bucket(ALL, 1024) > LEAST_BYTES
    assert _bucket(Overlap(data=True, bucket_bytes=1e6), 1024) == pytest.approx(1e6)
