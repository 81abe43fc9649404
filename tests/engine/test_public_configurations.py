"""config.json files as people publish them: options that change nothing refuse none, those that do are refused by name.

Each is cut to a small width; of the kinds that take long to draw the sizes alone are read.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UsageError
from engine.models.adapters.folder import read_network

WITHOUT_TOKENS = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES = WITHOUT_TOKENS | {"vocab_size": 96}
LLAMA = SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": True,
    "initializer_range": 0.02,
}
QWEN2 = LLAMA | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_key_value_heads": 2,
    "max_window_layers": 2,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.0,
    "embd_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "n_ctx": 64, "n_embd": 64, "n_head": 4,
    "n_layer": 2, "n_positions": 64, "vocab_size": 96, "summary_type": "cls_index", "summary_use_proj": True,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_activation": None,
}  # fmt: skip
NEOX = SIZES | {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "hidden_act": "gelu",
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.24.0",
}
BERT = SIZES | {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "type_vocab_size": 2,
}
VIT = WITHOUT_TOKENS | {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
    "layer_norm_eps": 1e-12,
    "qkv_bias": True,
    "encoder_stride": 16,
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
}
WRITTEN_BY_4: dict[str, Any] = {
    "return_dict": True, "output_hidden_states": False, "output_attentions": False, "torchscript": False,
    "torch_dtype": None, "use_bfloat16": False, "tf_legacy_loss": False, "pruned_heads": {},
    "chunk_size_feed_forward": 0, "is_encoder_decoder": False, "is_decoder": False, "cross_attention_hidden_size": None,
    "add_cross_attention": False, "tie_encoder_decoder": False, "max_length": 20, "min_length": 0, "do_sample": False,
    "early_stopping": False, "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "temperature": 1.0,
    "top_k": 50, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "num_return_sequences": 1,
    "output_scores": False, "return_dict_in_generate": False, "forced_bos_token_id": None, "forced_eos_token_id": 2,
    "remove_invalid_values": False, "exponential_decay_length_penalty": None, "suppress_tokens": None,
    "begin_suppress_tokens": [220, 50256], "finetuning_task": "lm", "tokenizer_class": "Some", "prefix": None,
    "sep_token_id": None, "decoder_start_token_id": None, "task_specific_params": {"text-generation": {"top_k": 5}},
    "problem_type": None, "_name_or_path": "org/model", "transformers_version": "4.30.0",
}  # fmt: skip
"""What version 4 writes where it is asked for all of a configuration."""
EVERY = {"llama": LLAMA, "qwen2": QWEN2, "gpt2": GPT2, "gpt_neox": NEOX, "bert": BERT, "vit": VIT}

PUBLIC: dict[str, dict[str, Any]] = {
    "Llama 1, as first converted": LLAMA
    | {"architectures": ["LLaMAForCausalLM"], "bos_token_id": 0, "max_sequence_length": 64, "pad_token_id": -1},
    "Vicuna": LLAMA | {"num_key_value_heads": 4, "pretraining_tp": 1, "temperature": 0.9, "top_p": 0.6},
    "TinyLlama chat": LLAMA | {"pad_token_id": 0, "max_length": 2048, "gradient_checkpointing": True},
    "SmolLM2": LLAMA | {"is_llama_config": True, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000},
    "Yi": LLAMA | {"pad_token_id": 0, "seq_length": 4096, "model_max_length": 4096, "rope_theta": 5000000.0},
    "of unsloth": LLAMA
    | {"unsloth_version": "2024.9", "unsloth_fixed": True, "pad_token_id": 95, "padding_side": "left"},
    "with custom code beside": LLAMA | {"auto_map": {"AutoModelForCausalLM": "modeling_flash.LlamaForCausalLM"}},
    "of old attention options": LLAMA | {"_flash_attn_2_enabled": True, "_attn_implementation": "sdpa"},
    "of version 5": LLAMA | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "dtype": "bfloat16"},
    "Qwen2-VL's text, by itself": QWEN2 | {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92},
    "R1 distilled": QWEN2 | {"use_mrope": False, "_commit_hash": "0", "rope_theta": 10000},
    "gpt2": GPT2 | {"task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
    "distilgpt2": GPT2 | {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    "gpt2-medium": GPT2 | {"n_special": None, "output_past": True, "predict_special_tokens": True},
    "Cerebras": GPT2 | {"n_inner": 256, "scale_attn_weights": True, "activation_function": "gelu"},
    "pythia": NEOX,
    "gpt-neox-20b": NEOX | {"hidden_act": "gelu_python", "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0},
    "polyglot": NEOX | {"num_steps": "global_step320000", "rotary_pct": 0.5, "pad_token_id": 2},
    "dolly": NEOX | {"custom_pipelines": {"text-generation": {"impl": "x.P", "pt": "AutoModelForCausalLM"}}},
    "RedPajama": NEOX | {"rotary_pct": 1.0, "use_parallel_residual": False},
    "bert-base-chinese": BERT
    | {
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
    },
    "bert-base-uncased": BERT | {"gradient_checkpointing": False, "position_embedding_type": "absolute"},
    "a fine-tuned BERT": BERT | {"finetuning_task": "tnews", "output_past": True, "classifier_dropout": None},
    "vit-base": VIT | {"pooler_act": "tanh", "pooler_output_size": 64, "problem_type": "single_label_classification"},
    "vit of labels counted": {key: value for key, value in VIT.items() if "label" not in key} | {"num_labels": 3},
    **{f"all of {name}": config | WRITTEN_BY_4 for name, config in EVERY.items()},
}

MATTERS: dict[str, tuple[dict[str, Any], str]] = {
    "attention dropout": (LLAMA | {"attention_dropout": 0.1}, "attention_dropout=0.1"),
    "linear positions": (LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_type='linear'"),
    "yarn": (QWEN2 | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type='yarn'"),
    "activation": (NEOX | {"hidden_act": "gelu_fast"}, "hidden_act='gelu_fast'"),
    "window": (QWEN2 | {"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window=True"),
    "quantised": (LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config="),
    "quantised by mlx": (LLAMA | {"quantization": {"group_size": 64, "bits": 4}}, "quantization="),
    "capped logits": (LLAMA | {"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
    "scaled logits": (LLAMA | {"logits_scaling": 8.0}, "logits_scaling=8.0"),
    "scaled residuals": (LLAMA | {"residual_multiplier": 0.22}, "residual_multiplier=0.22"),
    "experts": (QWEN2 | {"num_experts": 8}, "num_experts=8"),
    "clipped": (LLAMA | {"clip_qkv": 8}, "clip_qkv=8"),
    "bias": (LLAMA | {"attention_bias": True}, "attention_bias=True"),
    "pruned": (BERT | {"pruned_heads": {"0": [1]}}, "pruned_heads="),
    "relative positions": (BERT | {"position_embedding_type": "relative_key"}, "position_embedding_type="),
    "causal": (BERT | {"is_decoder": True}, "is_decoder=True"),
    "cross-attention": (GPT2 | {"add_cross_attention": True}, "add_cross_attention=True"),
    "scaled by layer": (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    "dropout of another name": (NEOX | {"attention_probs_dropout_prob": 0.1}, "attention_probs_dropout_prob=0.1"),
    "loss of several labels": (VIT | {"problem_type": "multi_label_classification"}, "problem_type="),
    "a class token's switch": (VIT | {"use_mask_token": True}, "use_mask_token=True"),
    "new": (LLAMA | {"logit_scale": 3.0}, "logit_scale=3.0"),
    "a text within": (LLAMA | {"model_type": "llava", "text_config": LLAMA}, "'llava'"),
    "another head": (LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
}


def folder_of(config: dict[str, Any], folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", PUBLIC)
def test_options_that_change_nothing_refuse_no_file(name: str, tmp_path: Path) -> None:
    """And the network is that of the same file without them."""
    config = PUBLIC[name]
    plain = next(usual for usual in EVERY.values() if usual["model_type"] == config["model_type"])
    known = {*plain, "rope_theta", "rope_parameters", "rope_scaling", "n_inner", "pad_token_id", "num_key_value_heads"}
    known |= {"num_labels"} if "id2label" not in config else set()
    kept = {key: value for key, value in config.items() if key in known} | {"architectures": plain["architectures"]}
    _, found = read_network(folder_of(config, tmp_path))
    _, same = read_network(folder_of(kept, tmp_path))
    assert found.options == same.options


@pytest.mark.parametrize("name", MATTERS)
def test_an_option_that_changes_the_computation_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    config, said = MATTERS[name]
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        read_network(folder_of(config, tmp_path))
    assert len(str(refused.value)) < 400 + len(str(tmp_path))


def test_labels_are_counted_where_they_have_no_names(tmp_path: Path) -> None:
    _, network = read_network(folder_of(PUBLIC["vit of labels counted"], tmp_path))
    assert network.outputs == 3
