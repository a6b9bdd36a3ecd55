#!/usr/bin/env python3
"""Times a decoder layer of plain PyTorch modules under torch.compile, and sets it against the layer that the phase
`speed` of device_check timed in the same run, as its table tells: torch_block.py SPEED.TSV TORCH.TSV

Weights and gradients are bf16. Gradients of several runs are added up in bf16 and not in fp32, which favours PyTorch.
A ratio is PyTorch's time by geopipe's. With --cpu nothing is timed: the modules run once, on processors.
"""
import argparse
import csv
import re
import statistics
import sys
import time

NOTE = "torch adds up gradients in bf16, not in fp32, which favours it"


def read_shapes(path):
    """By name: the layer's (tokens, hidden, intermediate, heads, kv_heads, head_dim, parameters), and geopipe's times
    of the layer and of its AdamW."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["us"]]
    found = {}
    for row in rows:
        name, _, rest = row["shape"].partition(" ")
        found.setdefault(name, {})[row["name"]] = (rest, float(row["us"]))
    shapes = {}
    for name, by_row in found.items():
        if not {"layer F+I+W", "attention F", "product down F", "kernel adamw"} <= by_row.keys():
            continue
        tokens, hidden, intermediate = map(int, by_row["product down F"][0].split("x"))
        heads, kv_heads, head_dim = map(int, re.search(r"heads=(\d+)/(\d+) d=(\d+)", by_row["attention F"][0]).groups())
        shapes[name] = ((tokens, hidden, intermediate, heads, kv_heads, head_dim, int(by_row["kernel adamw"][0])),
                        by_row["layer F+I+W"][1], by_row["kernel adamw"][1])
    return shapes


def modules(torch):
    """The layer's class: made here, since torch may not be there."""
    from torch import nn
    from torch.nn import functional

    class RmsNorm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight

    class Layer(nn.Module):
        def __init__(self, tokens, hidden, intermediate, heads, kv_heads, head_dim):
            super().__init__()
            self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
            self.attention_norm, self.mlp_norm = RmsNorm(hidden), RmsNorm(hidden)
            self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head_dim, bias=False)
            self.o = nn.Linear(heads * head_dim, hidden, bias=False)
            self.gate_up = nn.Linear(hidden, 2 * intermediate, bias=False)
            self.down = nn.Linear(intermediate, hidden, bias=False)
            pairs = torch.arange(0, head_dim, 2) / head_dim
            angles = torch.arange(tokens)[:, None] * 10000.0 ** -pairs
            self.register_buffer("cosine", torch.cat([angles.cos()] * 2, -1))
            self.register_buffer("sine", torch.cat([-angles.sin(), angles.sin()], -1))

        def turn(self, x):  # [batch, heads, tokens, head_dim]
            return x * self.cosine + x.roll(self.head_dim // 2, -1) * self.sine

        def forward(self, x):  # [batch, tokens, hidden]
            batch, tokens, _ = x.shape
            split = [self.heads, self.kv_heads, self.kv_heads]
            qkv = self.qkv(self.attention_norm(x)).view(batch, tokens, sum(split), self.head_dim).transpose(1, 2)
            q, k, v = qkv.split(split, 1)
            context = functional.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True,
                                                              enable_gqa=self.heads != self.kv_heads)
            x = x + self.o(context.transpose(1, 2).reshape(batch, tokens, -1))
            gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
            return x + self.down(functional.silu(gate) * up)

    return Layer


def median_us(torch, work, rounds=2, samples=20, round_s=0.3):
    """Median time of `work` on the GPU, by events, over two rounds; it is warm."""
    times = []
    for _ in range(3):
        work()
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin, marks = time.monotonic(), [torch.cuda.Event(enable_timing=True)]
        marks[0].record()
        while len(marks) <= samples and (len(marks) <= 3 or time.monotonic() - begin < round_s):
            work()
            marks.append(torch.cuda.Event(enable_timing=True))
            marks[-1].record()
        torch.cuda.synchronize()
        times += [1000 * a.elapsed_time(b) for a, b in zip(marks[1:], marks[2:])]
    return statistics.median(times)


def forward_and_backward(torch, layer, shape, device):
    """A function that runs F and B, where gradients are added to those of earlier runs."""
    make = lambda: torch.randn(1, shape[0], shape[1], device=device, dtype=torch.bfloat16)
    inputs, gradients = [make().requires_grad_() for _ in range(4)], [make() for _ in range(4)]
    turn = [0]

    def run():
        turn[0] = (turn[0] + 1) % len(inputs)
        inputs[turn[0]].grad = None
        layer(inputs[turn[0]]).backward(gradients[turn[0]])

    return run


def fastest_attention(torch, shape):
    """The backend whose attention is fastest at this shape, forward and backward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    tokens, _, _, heads, kv_heads, head_dim, _ = shape
    make = lambda count: torch.randn(1, count, tokens, head_dim, device="cuda", dtype=torch.bfloat16)
    q, k, v = (make(count).requires_grad_() for count in (heads, kv_heads, kv_heads))
    gradient, times = make(heads), {}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        def run():
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=heads != kv_heads).backward(gradient)
        try:
            with sdpa_kernel(backend):
                times[backend] = median_us(torch, run, rounds=1)
        except RuntimeError:
            pass  # it does not take this shape
    return min(times, key=times.get, default=SDPBackend.MATH)


def measure(torch, shape):
    """Microseconds of F and B of a layer, how it was run, and microseconds of its AdamW."""
    from torch.nn.attention import sdpa_kernel
    backend = fastest_attention(torch, shape)
    how = backend.name
    layer = modules(torch)(*shape[:-1]).to("cuda", torch.bfloat16)
    with sdpa_kernel(backend):
        try:
            run = forward_and_backward(torch, torch.compile(layer, dynamic=False), shape, "cuda")
            run()
        except RuntimeError as error:  # it needs a C compiler
            if isinstance(error, torch.OutOfMemoryError):
                raise
            how += f", not compiled: {(str(error) or repr(error)).splitlines()[0]}"
            run = forward_and_backward(torch, layer, shape, "cuda")
        layer_us = median_us(torch, run)
    del layer, run
    torch.cuda.empty_cache()
    weights = torch.nn.Parameter(torch.randn(shape[-1], device="cuda"))
    weights.grad = torch.randn_like(weights)
    adamw_us = median_us(torch, torch.optim.AdamW([weights], lr=1e-4, fused=True).step)
    return layer_us, how, adamw_us


def check_on_processors(torch, shapes):
    for name, (shape, _, _) in shapes.items():
        layer = modules(torch)(*shape[:-1]).to(torch.bfloat16)
        count = sum(parameter.numel() for parameter in layer.parameters())
        assert count == shape[-1], f"{name}: the layer has {count} parameters, geopipe's {shape[-1]}"
        run = forward_and_backward(torch, layer, shape, "cpu")
        run()
        assert all(bool(p.grad.isfinite().all()) and p.grad.abs().sum() > 0 for p in layer.parameters()), name
        print(f"torch: {name}: {count} parameters, F and B run")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speed")
    parser.add_argument("out")
    parser.add_argument("--budget", type=float, default=90, metavar="SECONDS")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    begin = time.monotonic()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: PyTorch is not here ({error})")
        return 0
    shapes = read_shapes(options.speed)
    if not shapes:
        print(f"skipped: {options.speed} tells of no layer")
        return 0
    if options.cpu:
        check_on_processors(torch, shapes)
        return 0
    if not torch.cuda.is_available():
        print(f"skipped: PyTorch {torch.__version__} finds no CUDA device")
        return 0
    with open(options.out, "w", buffering=1) as out:
        def tell(*cells):
            for to in (out, sys.stdout):
                print(*cells, sep="\t", file=to, flush=True)
        print("name\tshape\ttorch_us\tgeopipe_us\tratio\tnote", file=out)
        tell("title", "", "", "", "", f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}; {NOTE}")
        longest, found = 0, []
        for name, (shape, layer_us, adamw_us) in shapes.items():
            since = time.monotonic()
            if since - begin + longest > options.budget:
                tell("layer F+B", name, "", "", "", "left out: there is no time")
                continue
            try:
                torch_us, how, torch_adamw_us = measure(torch, shape)
            except torch.OutOfMemoryError:
                tell("layer F+B", name, "", "", "", "left out: it does not fit into the device's memory")
                continue
            longest = time.monotonic() - since
            tell("layer F+B", name, f"{torch_us:.1f}", f"{layer_us:.1f}", f"{torch_us / layer_us:.3f}", how)
            tell("adamw", name, f"{torch_adamw_us:.1f}", f"{adamw_us:.1f}", f"{torch_adamw_us / adamw_us:.3f}",
                 "fused, fp32; geopipe's writes a bf16 weight besides")
            found.append(f"{name} {torch_us / layer_us:.3f}, AdamW {torch_adamw_us / adamw_us:.3f}")
        print(f"torch: PyTorch's time by geopipe's, of a layer: {'; '.join(found) or 'nothing was timed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
