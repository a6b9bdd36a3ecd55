#!/usr/bin/python3
"""Times whole training iterations of the cpu backend beside PyTorch's, in turns on one thread: prints the median of the
pairs' ratios (PyTorch's time over ours) and of our iterations over their floor (see engine_bench.cc).

Needs Debian's python3-torch with libopenblas0-pthread. Of micro-batches of 1 and 4 samples each side takes the faster.
bf16 on PyTorch's side is what people run: fp32 master weights, a bf16 copy that computes, gradients added up in fp32.

    OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 engine_pairs.py build/release/bin/engine_bench --precision bf16
"""

import argparse
import math
import statistics
import subprocess
import sys
import time

import torch
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("bench")
parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
parser.add_argument("--pairs", type=int, default=11)
parser.add_argument("--hidden", type=int, default=512)
parser.add_argument("--intermediate", type=int, default=1408)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--heads", type=int, default=8)
parser.add_argument("--vocabulary", type=int, default=32000)
parser.add_argument("--sequence", type=int, default=512)
parser.add_argument("--tokens", type=int, default=2048)
parser.add_argument("--threads", type=int, default=1)
args = parser.parse_args()
torch.set_num_threads(args.threads)
DTYPE = torch.bfloat16 if args.precision == "bf16" else torch.float32


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        h, f = args.hidden, args.intermediate
        self.norm1 = torch.nn.Parameter(torch.ones(h))
        self.qkv = torch.nn.Linear(h, 3 * h, bias=False)
        self.o = torch.nn.Linear(h, h, bias=False)
        self.norm2 = torch.nn.Parameter(torch.ones(h))
        self.gate_up = torch.nn.Linear(h, 2 * f, bias=False)
        self.down = torch.nn.Linear(f, h, bias=False)

    def forward(self, x, cosine, sine, mask):
        b, s, h = x.shape
        d = h // args.heads
        q, k, v = self.qkv(norm(x, self.norm1)).view(b, s, 3, args.heads, d).permute(2, 0, 3, 1, 4)
        q, k = rope(q, cosine, sine), rope(k, cosine, sine)
        p = (q @ k.transpose(-1, -2) / math.sqrt(d) + mask).softmax(-1)
        x = x + self.o((p @ v).transpose(1, 2).reshape(b, s, h))
        gate, up = self.gate_up(norm(x, self.norm2)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def rope(x, cosine, sine):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(args.vocabulary, args.hidden)
        self.layers = torch.nn.ModuleList([Layer() for _ in range(args.layers)])
        self.norm = torch.nn.Parameter(torch.ones(args.hidden))
        self.head = torch.nn.Linear(args.hidden, args.vocabulary, bias=False)
        s, d = args.sequence, args.hidden // args.heads
        angle = torch.arange(s)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)[None, :]
        self.cosine, self.sine = angle.cos().to(DTYPE), angle.sin().to(DTYPE)
        self.mask = torch.full((s, s), float("-inf"), dtype=DTYPE).triu(1)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine, self.mask)
        return self.head(norm(x, self.norm))


class Training:
    def __init__(self):
        torch.manual_seed(1)
        self.model = Model().to(DTYPE)
        self.computing = list(self.model.parameters())
        self.masters = [p.detach().float().clone() for p in self.computing] if args.precision == "bf16" else self.computing
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def iterate(self, batch):
        begun = time.monotonic()
        for master in self.masters:
            master.grad = None
        for _ in range(args.tokens // (batch * args.sequence)):
            window = torch.randint(args.vocabulary, (batch, args.sequence + 1))
            logits = self.model(window[:, :-1]).view(-1, args.vocabulary)
            (functional.cross_entropy(logits, window[:, 1:].reshape(-1), reduction="sum") / args.tokens).backward()
            if args.precision == "bf16":
                for master, p in zip(self.masters, self.computing):
                    master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
                    p.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        if args.precision == "bf16":
            with torch.no_grad():
                for master, p in zip(self.masters, self.computing):
                    p.copy_(master)
        return time.monotonic() - begun


class Ours:
    def __init__(self, batch):
        keys = ["hidden", "intermediate", "layers", "heads", "vocabulary", "sequence", "tokens", "threads", "precision"]
        flags = [f"--{key}={getattr(args, key)}" for key in keys] + [f"--kv-heads={args.heads}"]
        self.process = subprocess.Popen([args.bench, "--step", f"--micro-batch={batch}", *flags], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def iterate(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def faster(of):
    """The batch of the least time of two tries each."""
    return min((min(of(batch), of(batch)), batch) for batch in (1, 4))[1]


def ours_once(batch):
    ours = Ours(batch)
    seconds = ours.iterate()[0]
    ours.end()
    return seconds


theirs = Training()
theirs.iterate(1)
their_batch, our_batch = faster(theirs.iterate), faster(ours_once)
ours = Ours(our_batch)
ours.iterate()
pairs = []
for i in range(args.pairs):
    iteration, products, copy = ours.iterate()
    torch_seconds = theirs.iterate(their_batch)
    pairs.append((torch_seconds / iteration, iteration / (products + copy), iteration, torch_seconds))
    print(f"pair {i}: ours {iteration:.3f} s, PyTorch {torch_seconds:.3f} s: {pairs[-1][0]:.3f} x, floor "
          f"{pairs[-1][1]:.3f} x", file=sys.stderr)
ours.end()
print(f"{args.precision}, PyTorch {torch.__version__}: {statistics.median(p[0] for p in pairs):.3f} x as fast (PyTorch "
      f"{statistics.median(p[3] for p in pairs):.3f} s at b = {their_batch}, ours "
      f"{statistics.median(p[2] for p in pairs):.3f} s at b = {our_batch}); ours is "
      f"{statistics.median(p[1] for p in pairs):.3f} x its floor")
