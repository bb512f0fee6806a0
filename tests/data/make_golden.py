"""Write the golden vectors golden_d{D}_g{G} and golden_tight_d{D}_g{G}.safetensors here.

Usage: make_golden.py [OUTPUT_DIRECTORY]

README.md lists the tensors.  Seeds are searched so that no code lies close to a
rounding boundary and no iterate close to a tie: a float32 implementation then has to
give the same codes.  Its fp16 vectors may differ by one unit, and for the tiles that
the metadata entry "floating" names by a common factor between u and a, z (w and b, y).
"""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import kvarn_ref as ref
import st_file

PAIRS = ((2, 2), (4, 2), (4, 4))
POLICIES = {"public": "kvarn", "scalefree": "scalefree"}
TIGHT = ((64, 128), (128, 128), (256, 64))   # D, G
SEEDS = 2000
MIN_CODE_MARGIN = 1e-5               # of a step
MIN_TIE_MARGIN = 1e-5                # of the imbalance


def preset(policy: str, bits_k: int, bits_v: int, g: int) -> str:
    return f"{POLICIES.get(policy, policy)}_k{bits_k}v{bits_v}_g{g}"


def make_case(case: str, seed: int, d: int, g: int):
    """Inputs (q, k, v) of one case, k and v already rounded to the stored type."""
    rng = np.random.default_rng([seed, d, g, len(case)])
    if case == "hard":
        q, k, v = ref.synth(rng, g, d, gain=0.05, outlier_channels=d // 16,
                            outlier_tokens=0.08)
        k[g // 3] = 0.0
        # An exactly zero value token would leave the choice of iterate to rounding.
        v[g // 3] *= 2e-3
        v[:, d // 5] *= 40.0
    else:
        q, k, v = ref.synth(rng, g, d)
    if case == "bf16":
        k, v = st_file.to_bf16(k), st_file.to_bf16(v)
    else:
        k, v = k.astype(np.float16), v.astype(np.float16)
    return q.astype(np.float32), k, v


def wide(x: np.ndarray) -> np.ndarray:
    if isinstance(x, st_file.BF16):
        x = st_file.from_bf16(x)
    return np.asarray(x, dtype=np.float64)


def code_margin(x: np.ndarray, bits: int, share: float = 1.0) -> float:
    """Distance of the closest element to a boundary between two codes, in steps."""
    _, step, lo = ref.rtn_rows(x, bits, share)
    pos = (x - lo[:, None]) / step[:, None]
    boundary = np.clip(np.floor(pos) + 0.5, 0.5, (1 << bits) - 1.5)
    return float(np.abs(pos - boundary).min())


def tie_margin(tile: np.ndarray) -> tuple[float, bool]:
    """Relative gap of the kept imbalance to the closest iterate with other codes.

    Iterates whose column scales differ by a common factor give equal codes and an equal
    imbalance, so rounding decides which one is kept; the flag reports that this occurs.
    """
    trace: list[tuple[float, np.ndarray]] = []
    kept = ref.varn(tile, trace=trace)[1]
    best = min(value for value, _ in trace)
    gap, floating = 1.0, False
    for value, scales in trace:
        ratio = scales / kept
        factor, distance = float(np.median(ratio)), (value - best) / best
        if np.abs(ratio / factor - 1).max() > 1e-5:
            gap = min(gap, distance)
        elif abs(factor - 1) > 1e-5 and distance < 1e-5:
            floating = True
    return float(gap), floating


def margins(k: np.ndarray, v: np.ndarray) -> tuple[float, float, list[str]]:
    """Worst code margin, worst tie margin and the tiles with a floating factor."""
    h = ref.hadamard(k.shape[1])
    code, tie, floating = 1.0, 1.0, []
    for side, tile in (("k", (wide(k) @ h).T), ("v", wide(v) @ h)):
        for policy, prefix in POLICIES.items():
            x = ref.balance(tile, policy)[0]
            code = min([code] + [code_margin(x, bits) for bits in (2, 4)])
            if code < MIN_CODE_MARGIN:
                return code, 0.0, []
            gain = ref.gain_of(tile) if policy == "scalefree" else 1.0
            gap, loose = tie_margin(tile / gain)
            tie = min(tie, gap)
            floating += [f"{prefix}.{side}"] if loose else []
    return code, tie, floating


def tight_margins(k: np.ndarray, v: np.ndarray) -> tuple[float, float, list[str]]:
    """As margins(), of the tight policy, with keys rotated and as they come."""
    h = ref.hadamard(k.shape[1])
    code, tie, floating = 1.0, 1.0, []
    for side, name, tile, widths in (("k", "k", (wide(k) @ h).T, (2, 4)),
                                     ("v", "v", wide(v) @ h, (2, 4)),
                                     ("k", "k_rotated", wide(k).T, (2,))):
        x = ref.balance(tile, "tight")[0]
        for bits in widths:
            code = min(code, code_margin(x, bits, ref.share_of(side, bits, "tight")))
        if code < MIN_CODE_MARGIN:
            return code, 0.0, []
        gap, loose = tie_margin(tile / ref.gain_of(tile))
        tie = min(tie, gap)
        floating += [f"tight.{name}"] if loose else []
    return code, tie, floating


def find_case(case: str, d: int, g: int, margins_of=margins):
    """The first seed with wide margins: (q, k, v, note, floating tiles)."""
    for seed in range(SEEDS):
        q, k, v = make_case(case, seed, d, g)
        code, tie, floating = margins_of(k, v)
        if tie > MIN_TIE_MARGIN:
            note = f"{case}: seed {seed}, code margin {code:.1e}, tie margin {tie:.1e}"
            return q, k, v, note, [f"{case}.{tile}" for tile in floating]
    raise RuntimeError(f"no usable seed for {case} D={d} G={g}")


def keeps_hat(case: str, policy: str, pair: tuple[int, int]) -> bool:
    """K4V2 shares its keys with K4V4 and its values with K2V2; size limits the rest."""
    if pair == (4, 2) or case == "bf16":
        return False
    return case == "hard" or policy == "public"


def make_file(path: Path, d: int, g: int) -> None:
    tensors: dict[str, np.ndarray] = {}
    notes, floating = [], []
    tiles: dict[str, list[ref.Tile]] = {}
    dense = []
    scale = np.float32(d ** -0.5)
    for case in ("plain", "hard", "bf16"):
        q, k, v, note, loose = find_case(case, d, g)
        tensors |= {f"{case}.k": k, f"{case}.v": v}
        notes.append(note)
        floating += loose
        if case == "plain":
            tensors |= {"attn.q": q, "attn.scale": np.array([scale])}
        if case != "bf16":
            dense.append((wide(k), wide(v)))
        for policy in POLICIES:
            for pair in PAIRS[:1] if case == "bf16" else PAIRS:
                name = preset(policy, *pair, g)
                tile = ref.quantise(wide(k), wide(v), *pair, policy)
                tensors[f"{case}.{name}.record"] = ref.to_record(tile)
                if keeps_hat(case, policy, pair):
                    k_hat, v_hat = ref.dequantise(tile)
                    tensors[f"{case}.{name}.k_hat"] = k_hat.astype(np.float32)
                    tensors[f"{case}.{name}.v_hat"] = v_hat.astype(np.float32)
                if case != "bf16":
                    tiles.setdefault(name, []).append(tile)
    q64, s64 = tensors["attn.q"].astype(np.float64), float(scale)
    results = {name: ref.merge([ref.attend_tile(q64, t, s64) for t in pair])
               for name, pair in tiles.items()}
    results["dense"] = ref.attend_dense(q64, np.concatenate([p[0] for p in dense]),
                                        np.concatenate([p[1] for p in dense]), s64)
    for name, (out, lse) in results.items():
        tensors |= {f"attn.{name}.out": out.astype(np.float32),
                    f"attn.{name}.lse": lse.astype(np.float32)}
    st_file.write(path, tensors, {
        "d": str(d), "g": str(g), "iterations": str(ref.ITERATIONS),
        "cases": "; ".join(notes), "floating": ",".join(floating),
        "made_by": "tests/data/make_golden.py"})
    print(f"{path.name}: {path.stat().st_size} bytes; " + "; ".join(notes + floating),
          flush=True)


def make_tight_file(path: Path, d: int, g: int) -> None:
    tensors: dict[str, np.ndarray] = {}
    notes, floating = [], []
    for case in ("plain", "hard"):
        _, k, v, note, loose = find_case(case, d, g, tight_margins)
        tensors |= {f"{case}.k": k, f"{case}.v": v}
        notes.append(note)
        floating += loose
        for pair in PAIRS:
            tile = ref.quantise(wide(k), wide(v), *pair, "tight")
            tensors[f"{case}.{preset('tight', *pair, g)}.record"] = ref.to_record(tile)
    k, v, name = tensors["plain.k"], tensors["plain.v"], f"plain.{preset('tight', 2, 2, g)}"
    tile = ref.quantise(wide(k), wide(v), 2, 2, "tight", k_rotated=True)
    tensors[f"{name}.k_rotated.record"] = ref.to_record(tile)
    if d == TIGHT[0][0]:
        k_hat, v_hat = ref.dequantise(tile, k_rotated=True)
        tensors |= {f"{name}.k_rotated.k_hat": k_hat.astype(np.float32),
                    f"{name}.k_rotated.v_hat": v_hat.astype(np.float32)}
    st_file.write(path, tensors, {
        "d": str(d), "g": str(g), "iterations": str(ref.ITERATIONS),
        "cases": "; ".join(notes), "floating": ",".join(floating),
        "made_by": "tests/data/make_golden.py"})
    print(f"{path.name}: {path.stat().st_size} bytes; " + "; ".join(notes + floating),
          flush=True)


def main() -> None:
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for d in (64, 128, 256):
        for g in (64, 128):
            make_file(where / f"golden_d{d}_g{g}.safetensors", d, g)
    for d, g in TIGHT:
        make_tight_file(where / f"golden_tight_d{d}_g{g}.safetensors", d, g)


if __name__ == "__main__":
    main()
