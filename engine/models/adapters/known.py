"""Every adapter. A new one is a file beside this one and a line here. No torch in it."""

from engine.models.adapters.transformers_gpt2 import GPT2
from engine.models.adapters.transformers_llama import LLAMA, QWEN2, QWEN3
from engine.models.adapters.transformers_neox import NEOX

ADAPTERS = (GPT2, LLAMA, QWEN2, QWEN3, NEOX)
