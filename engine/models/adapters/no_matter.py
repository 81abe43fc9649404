"""Options of transformers' configurations that change nothing of a training step's numbers. No torch.

Beside those of its classes, files carry what version 4 wrote of generation, and what people and tools noted down there.
"""

from typing import Any

NO_MATTER = frozenset(
    {
        *("model_type", "architectures", "transformers_version", "_name_or_path", "dtype", "torch_dtype", "auto_map"),
        *("bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id", "tokenizer_class"),
        *("id2label", "label2id", "num_labels", "problem_type", "classifier_dropout", "task_specific_params"),
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "torchscript", "pretraining_tp"),
        *("initializer_range", "chunk_size_feed_forward", "use_bfloat16", "gradient_checkpointing"),
        *("is_llama_config", "transformers.js_config", "unsloth_version", "max_length", "max_sequence_length"),
        *("_commit_hash", "_attn_implementation_autoset"),
    }
)
"""Options that networks of transformers have, or had."""
OF_GENERATION = frozenset(
    {
        *("min_length", "max_new_tokens", "min_new_tokens", "max_time", "do_sample", "early_stopping", "num_beams"),
        *("num_beam_groups", "temperature", "top_k", "top_p", "top_h", "min_p", "typical_p", "epsilon_cutoff"),
        *("eta_cutoff", "diversity_penalty", "repetition_penalty", "encoder_repetition_penalty", "length_penalty"),
        *("presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("bad_words_ids", "force_words_ids", "renormalize_logits", "constraints", "remove_invalid_values"),
        *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"),
        *("guidance_scale", "num_return_sequences", "output_scores", "output_logits", "return_dict_in_generate"),
        *("penalty_alpha", "dola_layers", "stop_strings", "watermarking_config", "generation_config", "prefix"),
        *("max_matching_ngram_size", "prompt_lookup_num_tokens", "low_memory", "token_healing", "chat_template"),
        *("cache_implementation", "cache_config", "prefill_chunk_size", "max_cache_len", "compile_config"),
        *("disable_compile", "forced_decoder_ids"),
    }
)
NOTED = frozenset(
    {
        *("finetuning_task", "attn_implementation", "tf_legacy_loss", "output_past", "predict_special_tokens"),
        *("directionality", "language", "license", "tags", "custom_pipelines", "keys_to_ignore_at_inference"),
        *("ignore_keys_at_rope_validation", "num_steps", "unsloth_fixed", "use_auth_token", "model_name"),
        *("model_max_length", "max_seq_length", "max_seq_len", "max_tokens", "seq_length", "name_or_path"),
        *("tokenizer_name", "padding_side", "use_fast", "trust_remote_code", "use_flash_attn", "use_flash_attention"),
        *("use_flash_attention_2", "flash_attention", "use_sdpa", "low_cpu_mem_usage", "device", "device_map"),
        *("training_args", "finetuned_from", "base_model", "base_model_name_or_path", "revision"),
        *("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"),
        *("base_model_tp_plan", "base_model_pp_plan", "base_model_ep_plan", "base_model_fsdp_plan"),
        *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"),
        *("pooler_type", "distributed_config"),
    }
)
PRIVATE = "_"
"""What transformers keeps for itself begins so."""
ENDS = ("_token_id", "_token_ids", "_token_index", "_version")
READ_BY_ADAPTERS = ("pad_token_id",)
"""Rows of a table learn nothing where this stands."""
DROPPING = ("dropout", "dropout_prob", "dropout_rate", "drop_rate", "pdrop", "layerdrop")
OFF = ("add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder", "is_decoder", "quantized", "is_quantized")


def matters_not(name: str) -> bool:
    """Say whether an option changes nothing, whatever its value."""
    if name in READ_BY_ADAPTERS:
        return False
    return name in NO_MATTER | OF_GENERATION | NOTED or name.startswith(PRIVATE) or name.endswith(ENDS)


def says_nothing(name: str, value: Any) -> bool:
    """Say whether an option that no adapter asks for changes nothing at this value: it is empty, drops nothing, or says
    that what no network here has is off.
    """
    if isinstance(value, str | list | tuple | dict):
        return not value
    return (value == 0 and name.endswith(DROPPING)) or (value is False and name in OFF)
