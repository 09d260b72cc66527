#!/usr/bin/env python3
"""Instructions per round, by callgrind: rounds of one rank with both roles in one thread (m2n_rounds).

usage: profile.py M2N_ROUNDS [TOKENS...]
Two runs with different numbers of rounds are subtracted, so that set-up does not count.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

FEW, MANY = 200, 1200


def profile(program, tokens, rounds, folder):
    """Total instructions, and those of each function itself."""
    out = folder / f"{tokens}-{rounds}"
    subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, str(tokens), str(rounds)],
                   check=True, capture_output=True)
    text = subprocess.run(["callgrind_annotate", "--threshold=100", str(out)], check=True, capture_output=True,
                          text=True).stdout
    functions = {}
    for line in text.splitlines():
        found = re.match(r"\s*([\d,]+) \([^)]*\)\s+\S*?:(.+?)(?: \[.*\])?$", line)
        if found:
            name = re.sub(r"\(.*", "", found[2].replace("(anonymous namespace)::", "")).replace("m2n::", "")
            functions[name] = functions.get(name, 0) + int(found[1].replace(",", ""))
    total = int(re.search(r"([\d,]+) \(100", text)[1].replace(",", ""))
    return total, functions


def main(program, sizes):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for tokens in sizes:
            few, few_of = profile(program, tokens, FEW, folder)
            many, many_of = profile(program, tokens, MANY, folder)
            rounds = MANY - FEW
            print(f"\n{tokens} tokens: {(many - few) / rounds:,.0f} instructions per round")
            spent = {name: (many_of[name] - few_of.get(name, 0)) / rounds for name in many_of}
            for function, count in sorted(spent.items(), key=lambda item: -item[1])[:14]:
                if count >= 1:
                    print(f"  {count:12,.0f}  {function}")


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:]] or [1, 8, 128])
