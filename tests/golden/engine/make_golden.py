#!/usr/bin/python3
"""Golden numbers of the training engine: a Llama decoder written by hand on torch autograd, torch.optim.AdamW and
clip_grad_norm_, independent of the C++ code.

Needs Debian's python3-torch and python3-numpy. Run it without arguments: it rewrites, beside itself, for each of
`tied` and `untied`: <case>/config.json, <case>/model.safetensors, <case>/expected.json; and tokens.u16.

The order of samples is the identity (shuffle: false): sample k of iteration i is window (i*n + k) mod windows, where
window j holds tokens j*s .. j*s + s.
"""

import json
import math
import pathlib
import struct

import numpy as np
import torch

ITERATIONS = 20


class Llama(torch.nn.Module):
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
        frequency = self.config["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.arange(s, dtype=torch.float64)[:, None] * frequency[None, :]
        cos = torch.cat([angle.cos(), angle.cos()], -1).to(x.dtype)
        sin = torch.cat([angle.sin(), angle.sin()], -1).to(x.dtype)
        rotated = torch.cat([-x[..., d // 2:], x[..., :d // 2]], -1)
        return x * cos + rotated * sin

    def attention(self, x, prefix):
        c = self.config
        b, s, h = x.shape
        heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
        d = h // heads
        q = (x @ self.w(prefix + "q_proj.weight").T).view(b, s, heads, d).transpose(1, 2)
        k = (x @ self.w(prefix + "k_proj.weight").T).view(b, s, groups, d).transpose(1, 2)
        v = (x @ self.w(prefix + "v_proj.weight").T).view(b, s, groups, d).transpose(1, 2)
        q, k = self.rope(q), self.rope(k)
        k = k.repeat_interleave(heads // groups, dim=1)
        v = v.repeat_interleave(heads // groups, dim=1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d)
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float("-inf"))
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, h)
        if self.zero_attention:
            context = context * 0
        return context @ self.w(prefix + "o_proj.weight").T

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
    k = config["num_key_value_heads"] * (h // config["num_attention_heads"])
    shapes = {"model.embed_tokens.weight": (v, h)}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes[p + "input_layernorm.weight"] = (h,)
        shapes[p + "self_attn.q_proj.weight"] = (h, h)
        shapes[p + "self_attn.k_proj.weight"] = (k, h)
        shapes[p + "self_attn.v_proj.weight"] = (k, h)
        shapes[p + "self_attn.o_proj.weight"] = (h, h)
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
        weights[name] = values + 1 if len(shape) == 1 else values
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


def make_case(folder, tied, tokens):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 48,
        "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "vocab_size": 160, "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied, "torch_dtype": "float32",
    }
    training = {
        "iterations": ITERATIONS, "learning_rate": 3e-3, "min_learning_rate": 3e-4, "warmup_iterations": 5,
        "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
    }
    b, s, micro_batches = 2, 32, 3
    weights = random_weights(config, torch.Generator().manual_seed(7 if tied else 11), std=0.08)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", weights)

    model = Llama(config, weights)
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
    for tied in (True, False):
        make_case(here / ("tied" if tied else "untied"), tied, torch.tensor(tokens.astype(np.int64)))


if __name__ == "__main__":
    main()
