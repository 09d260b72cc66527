"""What the checks look at: the files of the tree that git knows or would add, and their text."""
import os
import pathlib
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

SOURCES = (".cpp", ".hpp", ".h", ".cu", ".cuh")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def files(root, suffixes=None):
    """Paths relative to root, sorted. Outside a git checkout: every file."""
    found = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others",
                            "--exclude-standard"], capture_output=True, text=True)
    if found.returncode == 0 and (root / ".git").exists():
        names = {name for name in found.stdout.split("\0") if name and (root / name).is_file()}
    else:
        names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return sorted(name for name in names if suffixes is None or name.endswith(suffixes))


CODE_PART = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
                       r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def blank(text, keep_strings=False):
    """The code with comments (and the insides of strings) gone and every line still in its place."""
    def replace(match):
        part = match[0]
        if keep_strings and not part.startswith(("//", "/*")):
            return part
        lines = "\n" * part.count("\n")
        return lines if part.startswith(("//", "/*")) else '""' + lines
    return CODE_PART.sub(replace, text)


def each(function, items):
    """function(item) for all items, on all cores; the non-empty results in order."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [result for result in pool.map(function, items) if result]


def finish(name, complaints):
    """Prints what was found; the exit status."""
    print("\n".join(complaints) if complaints else f"{name}: clean")
    return 1 if complaints else 0
