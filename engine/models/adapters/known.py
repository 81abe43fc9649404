"""Every adapter is listed here. A new one is a file beside this one and a line here. No torch in it."""

from engine.models.adapters.diffusers_unet import UNET
from engine.models.adapters.litgpt import LITGPT
from engine.models.adapters.transformers_bert import BERT
from engine.models.adapters.transformers_gpt2 import GPT2
from engine.models.adapters.transformers_llama import LLAMA, QWEN2, QWEN3
from engine.models.adapters.transformers_neox import NEOX
from engine.models.adapters.transformers_vit import VIT

IN_FILES = (GPT2, LLAMA, QWEN2, QWEN3, NEOX, BERT, VIT, UNET)
"""Networks of these can be read from a folder."""
ADAPTERS = (*IN_FILES, LITGPT)
