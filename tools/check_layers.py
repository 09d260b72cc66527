#!/usr/bin/env python3
"""Fail when the structure of the code slips: include directions, vendor headers, single homes, sizes.

usage: check_layers.py [root]        one line per violation: file:line: rule: text
"""
import pathlib
import re
import sys

import tree
from functions import functions_in

# Layer -> layers it may include. Reading this table is reading the architecture.
MAY = {
    "include": {"include"},
    "transport": {"transport", "include"},
    "collectives": {"collectives", "transport", "include"},
    "plugins": {"include"},  # and the seams, and its own folder
    "examples": {"examples", "include"},
    "perf": {"perf", "include"},
    "tests": {"tests", "examples", "perf", "collectives", "transport", "include"},
}
CORE = {"include", "transport", "collectives"}
SEAMS = {"transport/transport.hpp", "transport/device.hpp", "transport/plugin_abi.hpp",
         "collectives/exchange.hpp"}
# Single files that may look deeper than their layer: (file, included).
ALLOWED = {("perf/put.cpp", "transport/transport.hpp")}

# Vendor header -> path prefixes that may see it.
VENDOR = {
    r"^(ucp|uct|ucs)/": ("plugins/ucx/",),
    r"^rdma/": ("plugins/libfabric/",),
    r"^(cuda|cuda_.*|driver_types)\.h$": ("plugins/cuda/", "plugins/nccl/", "tests/device/"),
    r"^nccl\.h$": ("plugins/nccl/", "perf/baseline/"),
    r"^mpi\.h$": ("plugins/mpi/", "perf/baseline/", "tests/mpi/"),
    r"^(gtest|gmock)/": ("tests/",),
    r"^benchmark/": ("perf/", "tests/"),
    r"^(CLI|fmt|spdlog|nlohmann)/": ("perf/", "examples/", "tests/"),
    r"^(cblas|cblas-openblas|openblas.*)\.h$": ("examples/", "perf/"),
    r"^(hwloc\.h$|hwloc/)": ("perf/",),
    r"^openssl/": ("transport/", "tests/"),
    r"^dlfcn\.h$": ("transport/plugin_loader.cpp", "perf/"),
}
STANDARD_ONLY = "include"  # this layer has standard headers only

# In the core: what the code says -> the only places that may say it.
CALL = r"(?<![\w.>:])(?:std::|::)?"  # a free call, not a member of the same name
HOMES = {
    "environment": (r"\b(?:secure_)?getenv\s*\(|\benviron\b", ("transport/env.cpp",)),
    "mutex": (r"\bstd::(?:recursive_|shared_|timed_)?(?:mutex|condition_variable)\b",
              ("transport/store_", "transport/inproc", "transport/registry")),
    "ends the process": (r"(?<!void )(?<!void Channel::)" + CALL +
                         r"(?:abort|exit|_exit|_Exit|quick_exit|terminate|assert)\s*\(", ()),
    "throws": (r"\bthrow\b", ()),
    "thread": (r"\bstd::j?thread\b(?!::)", ("transport/store_tcp",)),
}
BACKEND = (re.compile(r"(?i)\b(?:ucx|ucp|libfabric|nccl|cuda|rdma)\b"), ("transport/registry.cpp",))

MAX_LINES = 400
MAX_FUNCTION = 60
MAX_KERNEL = 120  # functions of files named *kernels*
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
OWN_HEADER = re.compile(r"^[a-z0-9_]+(\.[a-z0-9_]+)?$")


def layer_of(included):
    head = included.split("/")[0]
    if head == "m2n":
        return "include"
    return head if head in MAY else None


def check_include(rel, kind, included):
    """Complaints about one #include of one file."""
    here = rel.split("/")[0]
    if ".." in included.split("/"):
        yield f"relative: {included}"
    for pattern, homes in VENDOR.items():
        if re.search(pattern, included) and not rel.startswith(homes):
            yield f"vendor: {included}"
    to = layer_of(included)
    if here == STANDARD_ONLY and to is None and (kind == '"' or not OWN_HEADER.match(included)
                                                 or included.endswith(".h")):
        yield f"not a standard header: {included}"
    if to is None or (rel, included) in ALLOWED:
        return
    if here == "plugins":
        own = "/".join(rel.split("/")[:2]) + "/"
        if not (to == "include" or included in SEAMS or included.startswith(own)):
            yield f"seam: {included}"
    elif to not in MAY[here]:
        yield f"layer: {here} -> {to} ({included})"


def check_words(rel, line, code, code_with_strings):
    for name, (pattern, homes) in HOMES.items():
        if re.search(pattern, code) and not (homes and rel.startswith(homes)):
            yield f"{rel}:{line}: one home: {name}: {code.strip()}"
    pattern, homes = BACKEND
    if pattern.search(code_with_strings) and not rel.startswith(homes):
        yield f"{rel}:{line}: backend: {code_with_strings.strip()}"


def check_file(rel, text):
    here = rel.split("/")[0]
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        yield f"{rel}:{len(lines)}: size: {len(lines)} lines, allowed: {MAX_LINES}"
    code = tree.blank(text)
    with_strings = tree.blank(text, keep_strings=True).splitlines()
    for number, (plain, stringed) in enumerate(zip(code.splitlines(), with_strings), 1):
        match = INCLUDE.match(stringed)
        if match:
            for complaint in check_include(rel, match[1], match[2]):
                yield f"{rel}:{number}: {complaint}"
        elif here in CORE:
            yield from check_words(rel, number, plain, stringed)
    limit = MAX_KERNEL if "kernels" in rel.split("/")[-1] else MAX_FUNCTION
    for name, first, last in functions_in(code):
        if last - first + 1 > limit:
            yield f"{rel}:{first}: size: {name} has {last - first + 1} lines, allowed: {limit}"


def check(root):
    complaints = []
    for rel in tree.files(root, tree.SOURCES):
        if rel.split("/")[0] in MAY:
            complaints += check_file(rel, (root / rel).read_text(errors="replace"))
        elif "/" in rel and rel.split("/")[0] not in ("tools", "docs"):
            complaints.append(f"{rel}:1: layer: no such layer")
    for rel in tree.files(root):
        if rel.startswith("include/") and not rel.endswith((".hpp", ".h", "CMakeLists.txt")):
            complaints.append(f"{rel}:1: contract: include/ holds headers only")
    return complaints


if __name__ == "__main__":
    sys.exit(tree.finish("layers", check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tree.ROOT)))
