#!/usr/bin/python3
"""Golden logits of exported checkpoints: Hugging Face directories, read by hand, through a decoder on torch that is
independent of the C++ code (../engine/make_golden.py), in fp64.

Needs Debian's python3-torch. Run it without arguments: for each case beside itself it reads <case>/config.json and the
weights, and writes <case>/expected.json: token ids, their logits and the loss.

The directories were made by
    GEOPIPE_GOLDEN_CHECKPOINTS=DIR build/release/bin/test_runtime_checkpoint_export '[.make]'
    for case in tied qwen2 qwen3 llama31; do
      geopipectl export-hf --checkpoint DIR/$case/iteration-0000000010 --output tests/golden/export/$case
    done
    geopipectl export-hf --checkpoint DIR/untied/iteration-0000000010 --output tests/golden/export/untied \
        --max-shard-size 40kB
"""

import importlib.util
import json
import math
import pathlib
import struct

import torch

HERE = pathlib.Path(__file__).resolve().parent
SEQUENCES, SEQUENCE_LENGTH = 2, 16
MAX_SHARD_BYTES = {"tied": 5_000_000_000, "untied": 40_000, "qwen2": 5_000_000_000, "qwen3": 5_000_000_000,
                   "llama31": 5_000_000_000}
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def engine():
    spec = importlib.util.spec_from_file_location("engine_golden", HERE.parent / "engine" / "make_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}, "transformers refuses the file"
    tensors, end = {}, 0
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        assert first == end, "the tensors leave no gaps"
        end = last
        raw = bytearray(data[8 + length + first:8 + length + last])
        tensors[name] = torch.frombuffer(raw, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"]).to(torch.float64)
    assert 8 + length + end == len(data)
    return tensors


def read_directory(folder):
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(folder / "model.safetensors")
    weight_map = json.loads(index.read_text())["weight_map"]
    shards = {name: read_safetensors(folder / name) for name in sorted(set(weight_map.values()))}
    return {tensor: shards[shard][tensor] for tensor, shard in weight_map.items()}


def make_case(name, decoder):
    folder = HERE / name
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    assert config["architectures"] == [{"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family] + "ForCausalLM"]
    weights = read_directory(folder)
    assert ("lm_head.weight" in weights) != config["tie_word_embeddings"]
    model = decoder(config, weights)
    generator = torch.Generator().manual_seed(17)
    tokens = torch.randint(config["vocab_size"], (SEQUENCES, SEQUENCE_LENGTH + 1), generator=generator)
    with torch.no_grad():
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
    assert all(math.isfinite(value) for value in logits.reshape(-1).tolist())
    expected = {"sequences": SEQUENCES, "sequence_length": SEQUENCE_LENGTH, "max_shard_bytes": MAX_SHARD_BYTES[name],
                "inputs": tokens[:, :-1].reshape(-1).tolist(), "targets": tokens[:, 1:].reshape(-1).tolist(),
                "loss": loss.item(), "logits": [round(value, 9) for value in logits.reshape(-1).tolist()]}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def main():
    torch.set_num_threads(1)
    decoder = engine().Decoder
    for name in MAX_SHARD_BYTES:
        make_case(name, decoder)


if __name__ == "__main__":
    main()
