#!/usr/bin/env python3
"""Cuts a routing trace (docs/trace-format.md): some layers, and of each kind its first tokens.

cut_trace.py IN OUT --layers 0,3 --tokens 2048
"""
import argparse
import struct
import sys

HEADER = struct.Struct("<8s6I")


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    magic, version, layers, tokens, top_k, experts, kinds = HEADER.unpack_from(data)
    if magic != b"MOETRACE" or version != 1:
        sys.exit(f"{path}: no routing trace of version 1")
    names_at = HEADER.size
    kind_at = names_at + 16 * kinds
    expert_at = kind_at + tokens
    weight_at = expert_at + 2 * layers * tokens * top_k
    if len(data) != weight_at + 2 * layers * tokens * top_k:
        sys.exit(f"{path}: {len(data)} bytes, which is not what its header asks for")
    return {
        "layers": layers, "tokens": tokens, "top_k": top_k, "experts": experts, "kinds": kinds,
        "names": data[names_at:kind_at], "kind": data[kind_at:expert_at],
        "expert": data[expert_at:weight_at], "weight": data[weight_at:],
    }


def chosen_tokens(trace, wanted):
    """As many consecutive tokens of each kind as make `wanted` together."""
    per_kind = wanted // trace["kinds"]
    left = [per_kind] * trace["kinds"]
    chosen = []
    for token, kind in enumerate(trace["kind"]):
        if left[kind] > 0:
            left[kind] -= 1
            chosen.append(token)
    return chosen


def cut(trace, layers, tokens):
    row = 2 * trace["top_k"]

    def rows(table):
        parts = []
        for layer in layers:
            for token in tokens:
                at = (layer * trace["tokens"] + token) * row
                parts.append(table[at:at + row])
        return b"".join(parts)

    head = HEADER.pack(b"MOETRACE", 1, len(layers), len(tokens), trace["top_k"], trace["experts"],
                       trace["kinds"])
    kinds = bytes(trace["kind"][token] for token in tokens)
    return head + trace["names"] + kinds + rows(trace["expert"]) + rows(trace["weight"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--layers", default="0,3", help="layers to keep, such as 0,3")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens to keep")
    args = parser.parse_args()
    trace = read(args.source)
    layers = [int(text) for text in args.layers.split(",")]
    if any(layer < 0 or layer >= trace["layers"] for layer in layers):
        sys.exit(f"--layers {args.layers}: the trace has {trace['layers']}")
    with open(args.target, "wb") as file:
        file.write(cut(trace, layers, chosen_tokens(trace, args.tokens)))


if __name__ == "__main__":
    main()
