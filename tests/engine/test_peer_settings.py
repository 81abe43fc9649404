"""The table of what peers are set to for speed, and the installed libraries."""

import os
import subprocess

import pytest

from engine.peers import environments
from engine.peers.settings import chosen, every

BUILDS = {
    "megatron-core": "from megatron.core.transformer.transformer_config import TransformerConfig as T\n"
    "from megatron.core.distributed import DistributedDataParallelConfig as D\n"
    "from megatron.core.optimizer import OptimizerConfig as O\n"
    "need = dict(num_layers=2, hidden_size=8, num_attention_heads=2)\n"
    "known = {'TransformerConfig': (T, need), 'DistributedDataParallelConfig': (D, {}), 'OptimizerConfig': (O, {})}\n",
    "deepspeed": "from deepspeed.runtime.zero.config import DeepSpeedZeroConfig as Z\n"
    "known = {'zero_optimization': (Z, {})}\n",
}


def test_every_setting_has_a_value_for_both_devices_and_a_source() -> None:
    for sections in every().values():
        for section in sections.values():
            for row in section.values():
                assert set(row) == {"cpu", "cuda", "source"}
                assert row["source"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("library", BUILDS)
def test_the_installed_library_takes_each_setting(library: str, device: str) -> None:
    """Also those of GPUs, which nothing else here builds."""
    if reason := environments.lacking(library):
        pytest.skip(reason)
    given = {section: chosen(library, section, device) for section in every()[library]}
    script = f"{BUILDS[library]}for name, own in {given!r}.items(): known[name][0](**known[name][1], **own)\n"
    done = subprocess.run(
        [environments.python_of(library), "-P", "-c", script],
        capture_output=True, text=True, timeout=120, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
