"""Compares the engine with an independent implementation: LlamaForCausalLM of transformers.

Usage: validate.py [TOKENS]   in a Python that has torch and transformers besides numpy, gguf
and tokenizers (made with torch 1.13 and transformers 4.36).  Both get the same dequantised
weights of SmolLM2 and the same tokens; K and V stay float32 here, since rounding them to
fp16 on two sides that differ in the last bit is a difference of its own.
"""
from __future__ import annotations

import sys

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import texts
from cache import Cache
from engine import Engine
from models import Model

LIMIT = 1e-3


class Float32(Cache):
    """An exact cache that does not round to fp16."""

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        rows = slice(self.used, self.used + len(q))
        self.k[layer, :, rows], self.v[layer, :, rows] = k.swapaxes(0, 1), v.swapaxes(0, 1)
        return self._see(layer, q)


def state_dict(engine: Engine) -> dict[str, torch.Tensor]:
    """The engine's weights under the names of the other implementation."""
    s, w = engine.shape, engine.w
    names = {"input_layernorm": "attn_norm.weight", "post_attention_layernorm": "ffn_norm.weight",
             "self_attn.o_proj": "attn_output.weight", "mlp.down_proj": "ffn_down.weight"}
    state = {"model.embed_tokens": w["token_embd.weight"], "model.norm": w["output_norm.weight"],
             "lm_head": w.get("output.weight", w["token_embd.weight"])}
    for i in range(s.layers):
        at = f"model.layers.{i}."
        state |= {at + name: w[f"blk.{i}.{ours}"] for name, ours in names.items()}
        edges = np.cumsum([s.q_heads * s.dim, s.kv_heads * s.dim])
        for part, weight in zip("qkv", np.split(w[f"blk.{i}.qkv"], edges)):
            state[f"{at}self_attn.{part}_proj"] = weight
        for part, weight in zip(("gate", "up"), np.split(w[f"blk.{i}.gate_up"], 2)):
            state[f"{at}mlp.{part}_proj"] = weight
    return {f"{name}.weight": torch.from_numpy(np.ascontiguousarray(x))
            for name, x in state.items()}


def other(engine: Engine, tokens: np.ndarray) -> np.ndarray:
    s, w = engine.shape, engine.w
    config = LlamaConfig(
        vocab_size=len(w["token_embd.weight"]), hidden_size=w["token_embd.weight"].shape[1],
        intermediate_size=len(w["blk.0.gate_up"]) // 2, num_hidden_layers=s.layers,
        num_attention_heads=s.q_heads, num_key_value_heads=s.kv_heads, rms_norm_eps=s.eps,
        rope_theta=s.theta, max_position_embeddings=8192, hidden_act="silu")
    model = LlamaForCausalLM(config).eval()
    missing, unknown = model.load_state_dict(state_dict(engine), strict=False)
    if unknown or [name for name in missing if "inv_freq" not in name]:
        sys.exit(f"weights do not fit: missing {missing}, unknown {unknown}")
    with torch.no_grad():
        return model(torch.from_numpy(tokens)[None]).logits[0].numpy()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    model, worst = Model("smollm2-135m"), 0.0
    for name in texts.names():
        tokens = np.array(model.tokens(texts.load(name))[:count])
        lane = Float32(model.engine, count)
        ours = np.concatenate([
            model.engine.logits(model.engine.forward(tokens[None, at:at + 128], [lane])[0])
            for at in range(0, count, 128)])
        gap = float(np.abs(ours - other(model.engine, tokens)).max())
        print(f"{name}: {count} tokens, largest logit {np.abs(ours).max():.1f}, "
              f"largest difference {gap:.2e}", flush=True)
        worst = max(worst, gap)
    if worst > LIMIT:
        sys.exit(f"the engines differ by {worst:.2e}, more than {LIMIT:.0e}")


if __name__ == "__main__":
    main()
