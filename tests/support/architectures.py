"""Writes tiny models with random weights of architectures that keep states or have sliding windows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.tiny import Tensors, tokenizer_of, write_gguf

Sizes = dict[str, tuple[int, ...]]  # of tensors, by their names in a layer

WIDTH, HIDDEN, HEADS, HEAD, EXPERTS = 64, 64, 2, 32, 4
INNER, STATE, GROUPS, RANK, KERNEL = 128, 16, 2, 4, 4  # of a recurrent layer
DELTA_STATE, DELTA_INNER = 32, 128  # of a gated delta net
LORA = 16
WINDOW = 64
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_ATTENTION: Sizes = {f"attn_{part}.weight": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
_QK_NORMS: Sizes = {f"attn_{part}_norm.weight": (HEAD,) for part in "qk"}
_DENSE: Sizes = {
    "ffn_gate.weight": (HIDDEN, WIDTH),
    "ffn_up.weight": (HIDDEN, WIDTH),
    "ffn_down.weight": (WIDTH, HIDDEN),
}
_NORM: Sizes = {"attn_norm.weight": (WIDTH,)}
_UP_DOWN: Sizes = {name: _DENSE[name] for name in ("ffn_up.weight", "ffn_down.weight")}
_FFN: Sizes = {"ffn_norm.weight": (WIDTH,), **_DENSE}
_POST_NORM: Sizes = {"post_attention_norm.weight": (WIDTH,)}


def _experts(*, biases: bool = False) -> Sizes:
    sizes: Sizes = {
        f"{name.removesuffix('.weight')}_exps.weight": (EXPERTS, *size) for name, size in _DENSE.items()
    }
    sizes["ffn_gate_inp.weight"] = (EXPERTS, WIDTH)
    if biases:
        sizes |= {name.replace("weight", "bias"): size[:-1] for name, size in sizes.items()}
    return sizes


_SHARED: Sizes = {name.replace(".", "_shexp."): size for name, size in _DENSE.items()}
_MAMBA_2: Sizes = {
    "ssm_in.weight": (2 * INNER + 2 * GROUPS * STATE + RANK, WIDTH),
    "ssm_conv1d.weight": (INNER + 2 * GROUPS * STATE, KERNEL),
    "ssm_conv1d.bias": (INNER + 2 * GROUPS * STATE,),
    "ssm_dt.bias": (RANK,),
    "ssm_a": (RANK, 1),
    "ssm_d": (RANK, 1),
    "ssm_norm.weight": (GROUPS, INNER // GROUPS),
    "ssm_out.weight": (WIDTH, INNER),
}
_MAMBA: Sizes = {
    "ssm_in.weight": (2 * INNER, WIDTH),
    "ssm_conv1d.weight": (INNER, KERNEL),
    "ssm_conv1d.bias": (INNER,),
    "ssm_x.weight": (RANK + 2 * STATE, INNER),
    "ssm_dt.weight": (INNER, RANK),
    "ssm_dt.bias": (INNER,),
    "ssm_a": (INNER, STATE),
    "ssm_d": (INNER,),
    "ssm_out.weight": (WIDTH, INNER),
}
_JAMBA: Sizes = {
    **_MAMBA,
    "ssm_dt_norm.weight": (RANK,),
    "ssm_b_norm.weight": (STATE,),
    "ssm_c_norm.weight": (STATE,),
}
_KEYS = DELTA_STATE * GROUPS
_DELTA: Sizes = {
    "attn_qkv.weight": (2 * _KEYS + DELTA_INNER, WIDTH),
    "attn_gate.weight": (DELTA_INNER, WIDTH),
    "ssm_conv1d.weight": (2 * _KEYS + DELTA_INNER, KERNEL),
    "ssm_dt.bias": (RANK,),
    "ssm_a": (RANK,),
    "ssm_norm.weight": (DELTA_STATE,),
    "ssm_out.weight": (WIDTH, DELTA_INNER),
}
_QWEN_3_5 = _DELTA | {"ssm_beta.weight": (RANK, WIDTH), "ssm_alpha.weight": (RANK, WIDTH)}
_GATED = {**_ATTENTION, **_QK_NORMS, "attn_q.weight": (2 * WIDTH, WIDTH)}
_QWEN_3_NEXT: Sizes = {
    **_POST_NORM,
    **_experts(),
    **_SHARED,
    "ffn_gate_inp_shexp.weight": (WIDTH,),
}
_CONVOLUTION: Sizes = {
    "shortconv.conv.weight": (WIDTH, 3),
    "shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
    "shortconv.out_proj.weight": (WIDTH, WIDTH),
}


def _rwkv_7() -> Sizes:
    sizes: Sizes = {
        name: (WIDTH,) for norm in ("attn_norm", "attn_norm_2") for name in (f"{norm}.weight", f"{norm}.bias")
    }
    for part in "wavg":
        sizes |= {f"time_mix_{part}1.weight": (LORA, WIDTH), f"time_mix_{part}2.weight": (WIDTH, LORA)}
    sizes |= {f"time_mix_{part}.weight": (WIDTH,) for part in ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln")}
    sizes |= {f"time_mix_{part}.weight": (WIDTH, WIDTH) for part in ("key", "value", "receptance", "output")}
    return {
        **sizes,
        "time_mix_ln.bias": (WIDTH,),
        "time_mix_lerp_fused.weight": (6, 1, 1, WIDTH),
        "channel_mix_lerp_k.weight": (1, 1, WIDTH),
        "channel_mix_key.weight": (HIDDEN, WIDTH),
        "channel_mix_value.weight": (WIDTH, HIDDEN),
    }


_SSM = {
    "ssm.conv_kernel": KERNEL,
    "ssm.inner_size": INNER,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": RANK,
    "ssm.group_count": GROUPS,
}
_OF_DELTA = {
    **_SSM,
    "ssm.inner_size": DELTA_INNER,
    "ssm.state_size": DELTA_STATE,
    "full_attention_interval": 2,
    "rope.dimension_sections": [HEAD // 4] * 4,
}
_OF_EXPERTS = {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": HIDDEN}
_ONE_OF_TWO = {"attention.head_count_kv": [0, HEADS]}
_OF_RWKV = {
    "wkv.head_size": WIDTH,
    "token_shift_count": 2,
    "attention.layer_norm_epsilon": 1e-5,
    **{f"attention.{name}_lora_rank": LORA for name in ("decay", "iclr", "value_residual_mix", "gate")},
}
_OF_WINDOWS = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 2}

# For each architecture: metadata, the tensors of its layers, and others.
_WRITTEN: Mapping[str, tuple[dict[str, Any], list[Sizes], Sizes]] = {
    "mamba": (_SSM | {"ssm.group_count": 0}, [_NORM | _MAMBA] * 2, {}),
    "mamba2": (_SSM, [_NORM | _MAMBA_2] * 2, {}),
    "rwkv7": (
        _OF_RWKV,
        [_rwkv_7()] * 2,
        {
            "output.weight": (-1, WIDTH),
            "output_norm.bias": (WIDTH,),
            "token_embd_norm.weight": (WIDTH,),
            "token_embd_norm.bias": (WIDTH,),
        },
    ),
    "jamba": (
        _SSM | _ONE_OF_TWO | {"ssm.group_count": 0},
        [_NORM | _JAMBA | _FFN, _NORM | _ATTENTION | _FFN],
        {},
    ),
    "falcon-h1": (_SSM, [_NORM | _MAMBA_2 | _ATTENTION | _DENSE | {"ffn_norm": (WIDTH,)}] * 2, {}),
    "granitehybrid": (_SSM | _ONE_OF_TWO, [_NORM | _MAMBA_2 | _FFN, _NORM | _ATTENTION | _FFN], {}),
    "nemotron_h": (
        _SSM
        | {
            "attention.head_count_kv": [0, HEADS, 0],
            "feed_forward_length": [0, 0, HIDDEN],
            "attention.layer_norm_epsilon": 1e-5,
        },
        [_NORM | _MAMBA_2, _NORM | _ATTENTION, _NORM | _UP_DOWN],
        {},
    ),
    "lfm2": (
        _ONE_OF_TWO | {"shortconv.l_cache": 3},
        [_NORM | _CONVOLUTION | _FFN, _NORM | _ATTENTION | _QK_NORMS | _FFN],
        {"token_embd_norm.weight": (WIDTH,)},
    ),
    "qwen35": (
        _OF_DELTA,
        [_NORM | _POST_NORM | _QWEN_3_5 | _DENSE, _NORM | _POST_NORM | _GATED | _DENSE],
        {},
    ),
    "qwen3next": (
        _OF_DELTA | _OF_EXPERTS,
        [
            _NORM | _DELTA | {"ssm_ba.weight": (2 * RANK, WIDTH)} | _QWEN_3_NEXT,
            _NORM | _GATED | _QWEN_3_NEXT,
        ],
        {},
    ),
    "gemma3": (
        _OF_WINDOWS,
        [_NORM | _ATTENTION | _QK_NORMS | _POST_NORM | _FFN | {"post_ffw_norm.weight": (WIDTH,)}] * 2,
        {},
    ),
    "gpt-oss": (
        _OF_WINDOWS | _OF_EXPERTS,
        [
            _NORM
            | _ATTENTION
            | _POST_NORM
            | _experts(biases=True)
            | {f"attn_{part}.bias": (WIDTH,) for part in ("q", "k", "v", "output")}
            | {"attn_sinks.weight": (HEADS,)}
        ]
        * 2,
        {"output.weight": (-1, WIDTH)},
    ),
}
WITH_WINDOWS = ("gemma3", "gpt-oss")
STATEFUL = tuple(arch for arch in _WRITTEN if arch not in WITH_WINDOWS)


def write_architecture(path: Path, arch: str, vocabulary: Path, scale: float = 1.0) -> Path:
    """Write a model of an architecture to `path`; another file's vocabulary is its own.

    What cannot be written here: kimi-linear and deepseek4, whose attention is latent, and plamo2.

    Args:
        scale: Of the logits.
    """
    keys, layers, others = _WRITTEN[arch]
    tokenizer, n_vocab = tokenizer_of(vocabulary)
    tokenizer["tokenizer.chat_template"] = TEMPLATE
    sizes: Sizes = {"token_embd.weight": (n_vocab, WIDTH), "output_norm.weight": (WIDTH,)}
    if arch == "lfm2":
        del sizes["output_norm.weight"]
    sizes |= {name: tuple(n_vocab if n < 0 else n for n in size) for name, size in others.items()}
    sizes |= {f"blk.{i}.{name}": size for i, layer in enumerate(layers) for name, size in layer.items()}
    common = {
        "block_count": len(layers),
        "context_length": 4096,
        "embedding_length": WIDTH,
        "feed_forward_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD,
        "vocab_size": n_vocab,
    }
    random = np.random.default_rng(0)
    tensors: Tensors = {name: _values(random, name, size) for name, size in sizes.items()}
    tensors["output_norm.weight" if "output_norm.weight" in tensors else "token_embd_norm.weight"] *= scale
    return write_gguf(path, arch, common | keys | tokenizer, tensors)


def _values(random: np.random.Generator, name: str, size: tuple[int, ...]) -> Any:
    if name.endswith("ssm_a"):
        return -random.uniform(0.1, 1, size).astype(np.float32)
    if name.endswith(("norm", "norm.weight", "_ln.weight")):
        return np.full(size, 1.0, np.float32)
    return random.normal(0, 0.3, size).astype(np.float32)
