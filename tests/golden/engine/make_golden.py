#!/usr/bin/python3
"""Golden numbers of the training engine: decoders of the Llama, Mistral, Qwen2 and Qwen3 families written by hand on
torch autograd, torch.optim.AdamW and clip_grad_norm_, independent of the C++ code.

Needs Debian's python3-torch and python3-numpy. Run it without arguments: it rewrites, beside itself, for each of CASES:
<case>/config.json, <case>/model.safetensors, <case>/expected.json; and tokens.u16. With names of cases it rewrites those.

The order of samples is the identity (shuffle: false): sample k of iteration i is window (i*n + k) mod windows, where
window j holds tokens j*s .. j*s + s.
"""

import json
import math
import pathlib
import struct
import sys

import numpy as np
import torch

ITERATIONS = 20

# By case: what its config.json has besides the first two's, which are Llama 2.
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2}
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 24}
CASES = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "llama31": {**SMALL, "rope_theta": 500.0, "rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": False},
    "llama-bias": {**SMALL, "attention_bias": True, "head_dim": 12, "tie_word_embeddings": True, "rope_theta": 300.0,
                   "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0}},
    "mistral": {**SMALL, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 32,
                "tie_word_embeddings": False},
    "qwen2": {**SMALL, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False,
              "sliding_window": 16, "tie_word_embeddings": True},
    "qwen3": {**SMALL, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 12,
              "tie_word_embeddings": False},
}


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def frequencies(config):
    """Radians per position of each pair of a head, as transformers' modeling_rope_utils.py has them."""
    d = head_dim(config)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or config["rope_theta"]
    frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    kind = scaling.get("rope_type", "default")
    if kind == "linear":
        return frequency / scaling["factor"]
    if kind != "llama3":
        return frequency
    low, high, old = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"]
    length = 2 * math.pi / frequency
    scaled = torch.where(length > old / low, frequency / scaling["factor"], frequency)
    smooth = (old / length - low) / (high - low)
    smoothed = (1 - smooth) * scaled / scaling["factor"] + smooth * scaled
    medium = ~(length < old / high) * ~(length > old / low)
    return torch.where(medium, smoothed, scaled)


class Decoder(torch.nn.Module):
    """Parameters under their Hugging Face names, in `weights`."""

    def __init__(self, config, weights, zero_attention=False):
        super().__init__()
        self.config = config
        self.names = list(weights)
        self.parameters_list = torch.nn.ParameterList([torch.nn.Parameter(weights[name]) for name in self.names])
        self.index = {name: i for i, name in enumerate(self.names)}
        self.zero_attention = zero_attention

    def w(self, name):
        return self.parameters_list[self.index[name]]

    def norm(self, x, name):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.w(name)

    def rope(self, x):
        # x: [b, heads, s, d]; half rotation: the second half of the head is the partner of the first.
        s, d = x.shape[-2:]
        angle = torch.arange(s, dtype=torch.float64)[:, None] * frequencies(self.config)[None, :]
        cos = torch.cat([angle.cos(), angle.cos()], -1).to(x.dtype)
        sin = torch.cat([angle.sin(), angle.sin()], -1).to(x.dtype)
        rotated = torch.cat([-x[..., d // 2:], x[..., :d // 2]], -1)
        return x * cos + rotated * sin

    def linear(self, x, name):
        bias = self.w(name + ".bias") if name + ".bias" in self.index else None
        return torch.nn.functional.linear(x, self.w(name + ".weight"), bias)

    def attention(self, x, prefix):
        c = self.config
        b, s, _ = x.shape
        heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
        d = head_dim(c)
        q = self.linear(x, prefix + "q_proj").view(b, s, heads, d)
        k = self.linear(x, prefix + "k_proj").view(b, s, groups, d)
        if c["model_type"] == "qwen3":
            q, k = self.norm(q, prefix + "q_norm.weight"), self.norm(k, prefix + "k_norm.weight")
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        v = self.linear(x, prefix + "v_proj").view(b, s, groups, d).transpose(1, 2)
        q, k = self.rope(q), self.rope(k)
        k = k.repeat_interleave(heads // groups, dim=1)
        v = v.repeat_interleave(heads // groups, dim=1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d)
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float("-inf"))
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, heads * d)
        if self.zero_attention:
            context = context * 0
        return self.linear(context, prefix + "o_proj")

    def forward(self, tokens):
        x = self.w("model.embed_tokens.weight")[tokens]
        for i in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, p + "input_layernorm.weight"), p + "self_attn.")
            y = self.norm(x, p + "post_attention_layernorm.weight")
            gate = y @ self.w(p + "mlp.gate_proj.weight").T
            up = y @ self.w(p + "mlp.up_proj.weight").T
            x = x + (torch.nn.functional.silu(gate) * up) @ self.w(p + "mlp.down_proj.weight").T
        x = self.norm(x, "model.norm.weight")
        head = "model.embed_tokens.weight" if self.config["tie_word_embeddings"] else "lm_head.weight"
        return x @ self.w(head).T


def random_weights(config, generator, std):
    h, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q = config["num_attention_heads"] * head_dim(config)
    k = config["num_key_value_heads"] * head_dim(config)
    shapes = {"model.embed_tokens.weight": (v, h)}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes[p + "input_layernorm.weight"] = (h,)
        shapes[p + "self_attn.q_proj.weight"] = (q, h)
        shapes[p + "self_attn.k_proj.weight"] = (k, h)
        shapes[p + "self_attn.v_proj.weight"] = (k, h)
        shapes[p + "self_attn.o_proj.weight"] = (h, q)
        if config["model_type"] == "qwen2" or config.get("attention_bias"):
            for name, width in (("q", q), ("k", k), ("v", k)):
                shapes[p + f"self_attn.{name}_proj.bias"] = (width,)
        if config.get("attention_bias"):
            shapes[p + "self_attn.o_proj.bias"] = (h,)
        if config["model_type"] == "qwen3":
            shapes[p + "self_attn.q_norm.weight"] = (head_dim(config),)
            shapes[p + "self_attn.k_norm.weight"] = (head_dim(config),)
        shapes[p + "post_attention_layernorm.weight"] = (h,)
        shapes[p + "mlp.gate_proj.weight"] = (f, h)
        shapes[p + "mlp.up_proj.weight"] = (f, h)
        shapes[p + "mlp.down_proj.weight"] = (h, f)
    shapes["model.norm.weight"] = (h,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (v, h)
    weights = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator) * std
        weights[name] = values + 1 if len(shape) == 1 and not name.endswith(".bias") else values
    return weights


def learning_rate(training, i):
    lr, warmup = training["learning_rate"], training["warmup_iterations"]
    if i < warmup:
        return lr * (i + 1) / warmup
    if training.get("min_learning_rate") is None:
        return lr
    low = training["min_learning_rate"]
    progress = (i - warmup) / (training["iterations"] - warmup)
    return low + 0.5 * (lr - low) * (1 + math.cos(math.pi * progress))


def make_optimizer(model, training):
    groups = [
        {"params": [p for p in model.parameters_list if p.dim() >= 2], "weight_decay": training["weight_decay"]},
        {"params": [p for p in model.parameters_list if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=training["learning_rate"], betas=(training["beta1"], training["beta2"]),
                             eps=training["eps"])


def train_step(model, optimizer, training, iteration, tokens, order, b, s):
    """One iteration; returns loss and gradient norm before clipping. `order`: the iteration's windows."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(training, iteration)
    optimizer.zero_grad()
    total, predicted = 0.0, len(order) * s
    for q in range(0, len(order), b):
        windows = torch.stack([tokens[j * s:j * s + s + 1] for j in order[q:q + b]])
        logits = model(windows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), windows[:, 1:].reshape(-1),
                                                 reduction="sum") / predicted
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters_list, training["grad_clip"]).item()
    optimizer.step()
    return total, norm


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.detach().numpy().astype("<f4").tobytes())


def make_case(folder, own, tokens):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 48,
        "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "vocab_size": 160, "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "torch_dtype": "float32", **own,
    }
    training = {
        "iterations": ITERATIONS, "learning_rate": 3e-3, "min_learning_rate": 3e-4, "warmup_iterations": 5,
        "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
    }
    b, s, micro_batches = 2, 32, 3
    weights = random_weights(config, torch.Generator().manual_seed(7 if own["tie_word_embeddings"] else 11), std=0.08)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", weights)

    model = Decoder(config, weights)
    optimizer = make_optimizer(model, training)
    samples, windows = b * micro_batches, (len(tokens) - 1) // s
    losses, norms = [], []
    for i in range(ITERATIONS):
        order = [(i * samples + k) % windows for k in range(samples)]
        loss, norm = train_step(model, optimizer, training, i, tokens, order, b, s)
        losses.append(loss)
        norms.append(norm)
    expected = {"micro_batch_size": b, "sequence_length": s, "micro_batches": micro_batches, "training": training,
                "losses": losses, "gradient_norms": norms}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main():
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).resolve().parent
    # A second-order pattern with noise, so that there is something to learn.
    random = np.random.default_rng(3)
    values = [1, 2]
    for _ in range(2046):
        noise = random.random() < 0.2
        values.append(int(random.integers(160)) if noise else (3 * values[-1] + values[-2] + 7) % 160)
    tokens = np.array(values, dtype="<u2")
    (here / "tokens.u16").write_bytes(tokens.tobytes())
    for case in sys.argv[1:] or CASES:
        make_case(here / case, CASES[case], torch.tensor(tokens.astype(np.int64)))


if __name__ == "__main__":
    main()
