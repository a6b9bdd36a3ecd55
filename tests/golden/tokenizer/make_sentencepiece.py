"""Makes the SentencePiece models and ids of this folder with SentencePiece's own programs (Debian's sentencepiece), from
the texts that make_golden.mjs has written:

    python3 tests/golden/tokenizer/make_sentencepiece.py
"""
import json
import pathlib
import subprocess
import tempfile

FOLDER = pathlib.Path(__file__).parent
LINES = 18  # of texts.json, that tokenizers learn from

# As Llama 2 was trained: BPE, digits apart, bytes for what is rare, text taken as it is; and a unigram model with
# symbols of its own.
MODELS = {
    "llama2": ["--model_type=bpe", "--vocab_size=620", "--byte_fallback", "--split_digits",
               "--normalization_rule_name=identity", "--remove_extra_whitespaces=false"],
    "unigram": ["--model_type=unigram", "--vocab_size=360", "--normalization_rule_name=identity", "--bos_id=-1",
                "--eos_id=1", "--unk_id=2", "--user_defined_symbols=<mask>,<tool>", "--hard_vocab_limit=false"],
}

texts = json.loads((FOLDER / "texts.json").read_text())
single = [text for text in texts if text and "\n" not in text and "\r" not in text and "\0" not in text]
with tempfile.TemporaryDirectory() as room:
    learnt = pathlib.Path(room) / "learnt.txt"
    learnt.write_text("\n".join(line for text in texts[:LINES] for line in text.splitlines()) + "\n")
    for name, flags in MODELS.items():
        prefix = pathlib.Path(room) / name
        subprocess.run(["spm_train", f"--input={learnt}", f"--model_prefix={prefix}", "--num_threads=1",
                        "--character_coverage=0.99", *flags], check=True, capture_output=True)
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.model").write_bytes(prefix.with_suffix(".model").read_bytes())
        # spm_encode takes a text from each line.
        encoded = subprocess.run(["spm_encode", f"--model={prefix}.model", "--output_format=id"], check=True,
                                 input="".join(text + "\n" for text in single).encode(), capture_output=True)
        ids = [[int(word) for word in line.split()] for line in encoded.stdout.decode().split("\n")[:-1]]
        assert len(ids) == len(single)
        pairs = ",\n ".join(json.dumps([text, each], ensure_ascii=False) for text, each in zip(single, ids))
        (folder / "ids.json").write_text(f"[{pairs}]\n")
