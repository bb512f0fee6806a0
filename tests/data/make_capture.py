"""Record keys, values and queries of a real model during autoregressive decoding.

Usage: make_capture.py MODEL.gguf OUTPUT.safetensors [--layers 0,9,19,29] [--tokens 2048]

The prompt is prompt.txt, inside a request for chat models; the continuation is sampled
token by token with a fixed seed.  Layers, licence and head counts differ between models,
the tensor names do not.
"""
from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import st_file
from llama_numpy import Model, attend, make_tokenizer, perplexity, repeats, sample

QUERIES = 64
TEMPERATURE, TOP_P = 0.8, 0.95
NO_REPEAT = 4                        # small models fall into loops without this
REQUEST = "Continue this story in the same style. Write at least ten more paragraphs.\n\n"


def prompt_tokens(tok, story: str, chat: bool) -> list[int]:
    if not chat:
        return tok.encode(story)
    text = (f"<|im_start|>user\n{REQUEST}{story}<|im_end|>\n<|im_start|>assistant\n")
    return tok.encode(text)


def generate(model: Model, prompt: list[int], total: int, layers: list[int],
             banned: list[int], seed: int):
    """Prefill, then decode one token at a time until the cache holds `total` tokens."""
    rng = np.random.default_rng(seed)
    queries: dict[int, list[np.ndarray]] = {i: [] for i in layers}
    outputs: dict[int, list[np.ndarray]] = {i: [] for i in layers}
    tokens = list(prompt)
    logits = model.forward(tokens)[-1]
    while len(tokens) < total:
        logits[banned] = -np.inf     # keep writing: the capture has a fixed length
        logits[repeats(tokens, NO_REPEAT)] = -np.inf
        tokens.append(sample(logits, rng, TEMPERATURE, TOP_P))
        logits = model.forward(tokens[-1:])[-1]
        for i in layers:
            q, out = model.last[i]
            queries[i].append(q[0])
            outputs[i].append(out[0])
    tail = slice(-QUERIES, None)
    return (tokens, {i: np.stack(queries[i][tail]) for i in layers},
            {i: np.stack(outputs[i][tail]) for i in layers})


def check_attention(q, k, v, out, window: int) -> float:
    """Relative error of attention recomputed from the fp16 capture."""
    got = attend(q.astype(np.float32), k.astype(np.float32), v.astype(np.float32),
                 len(k) - len(q), window)
    return float(np.linalg.norm(got - out) / np.linalg.norm(out))


def check_row_order(model: Model, path: Path, tokens: list[int]) -> float:
    """Largest logit difference to the file's own row order with interleaved RoPE."""
    model.reset()
    ours = model.forward(tokens)
    model.reset()
    other = Model(path, len(tokens), interleaved=True).forward(tokens)
    return float(np.abs(ours - other).max())


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("model", type=Path)
    ap.add_argument("output", type=Path)
    ap.add_argument("--layers", default="0,9,19,29")
    ap.add_argument("--tokens", type=int, default=2048)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--name", default="SmolLM2-135M-Instruct (Q4_1 weights)")
    ap.add_argument("--licence", default="Apache-2.0")
    ap.add_argument("--text", type=Path, help="also write the generated text here")
    args = ap.parse_args()
    layers = [int(i) for i in args.layers.split(",")]

    model = Model(args.model, args.tokens)
    tok = make_tokenizer(model.meta)
    story = (Path(__file__).parent / "prompt.txt").read_text()
    plain = tok.encode(story)
    print(f"perplexity of the prompt text: {perplexity(model, plain):.2f} "
          f"({len(plain)} tokens)")
    if model.meta["general.architecture"] == "llama":
        gap = check_row_order(model, args.model, plain[:128])
        print(f"row order check, largest logit difference: {gap:.2e}")
        assert gap < 1e-2

    prompt = prompt_tokens(tok, story, "tokenizer.chat_template" in model.meta)
    banned = [i for i, kind in enumerate(model.meta["tokenizer.ggml.token_type"])
              if kind == 3]
    tokens, queries, outputs = generate(model, prompt, args.tokens, layers, banned,
                                        args.seed)
    tensors = {"tokens": np.array(tokens, np.int32)}
    for n, i in enumerate(layers):
        k, v, q = model.k[i], model.v[i], queries[i].astype(np.float16)
        error = check_attention(q, k, v, outputs[i], model.window(i))
        print(f"layer {i}: attention from the capture, relative error {error:.2e}")
        assert error < 5e-3 and np.isfinite(k).all() and np.isfinite(v).all()
        tensors |= {f"layer.{n}.k": k, f"layer.{n}.v": v, f"layer.{n}.q": q}
    s = model.shape
    st_file.write(args.output, tensors, {
        "model": args.name, "licence": args.licence, "layers": args.layers,
        "rope_theta": f"{s.theta:g}", "rope_style": "half-split",
        "softmax_scale": f"{s.dim ** -0.5:.9g}", "prompt_tokens": str(len(prompt)),
        "first_query_position": str(args.tokens - QUERIES),
        "made_by": "tests/data/make_capture.py: own float32 engine, fp16 KV cache, "
                   f"temperature {TEMPERATURE}, top-p {TOP_P}, no repeated "
                   f"{NO_REPEAT}-token runs, seed {args.seed}; "
                   "keys and queries after RoPE, queries not scaled"})
    if args.text:
        args.text.write_text(tok.decode(tokens[len(prompt):]))


if __name__ == "__main__":
    main()
