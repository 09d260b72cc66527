"""Finds the functions of a C++ file by counting braces: good enough to measure their length."""
import re

NOT_A_FUNCTION = re.compile(r"^(?:typedef\s+)?(?:struct|class|union|enum|namespace|concept)\b|=\s*$")
TAIL = re.compile(r"\)\s*(?:const|noexcept|override|final|mutable|volatile|try|&&?|"
                  r"->\s*[\w:<>,\s*&]+|requires\b[^;{]*|\s)*$")
INITIALISER = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:)[^;]*[\w>]\s*$")  # Foo(int a) : a_{
TOKEN = re.compile(r"[{};\n]|[^{};\n]+")


def is_function(head):
    return bool(TAIL.search(head)) and not NOT_A_FUNCTION.search(head)


def name_of(head):
    match = re.search(r"([\w:~]+|operator\s*\S+?)\s*\(", head)
    return match[1] if match else head[:40]


def without_preprocessor(code):
    """Directives gone (with their continuations), lines still in place: macros may hold half a block."""
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda match: "\n" * match[0].count("\n"), code,
                  flags=re.MULTILINE)


def functions_in(code):
    """(name, first line, last line) of every function; lambdas count as part of theirs.

    `code` has no comments and no string contents (tree.blank).
    """
    found, stack = [], []  # stack of (kind, head before it, first line)
    head, first, line = "", None, 1
    for match in TOKEN.finditer(without_preprocessor(code)):
        token = match[0]
        if token == "\n":
            line += 1
            head += " "
        elif token == "{":
            inside = any(kind == "function" for kind, _, _ in stack)
            kind = "block"
            if not inside and INITIALISER.search(head):
                kind = "initialiser"
            elif not inside and is_function(re.sub(r"\{\}\s*$", ")", head).strip()):
                kind = "function"
            stack.append((kind, head, first or line))
            head, first = "", None
        elif token == "}":
            if stack:
                kind, before, start = stack.pop()
                if kind == "function":
                    found.append((name_of(before), start, line))
                head, first = (before + "{}", start) if kind == "initialiser" else ("", None)
        elif token == ";":
            head, first = "", None
        else:
            if first is None and token.strip():
                first = line
            head += token
            if re.fullmatch(r"\s*(public|private|protected)\s*:\s*", head):
                head, first = "", None
    return found
