#!/usr/bin/env python3
"""Shows that every check finds what it is for: each gets a small tree with one seeded violation, and one
without. A check that cannot fail is worth nothing.
"""
import importlib.util
import pathlib
import tempfile
import unittest

import check_format
import check_headers
import check_layers
import check_shell
import check_text
import check_tidy
import functions
import tree


class Seeded(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.directory.name)
        self.addCleanup(self.directory.cleanup)

    def write(self, rel, text):
        path = self.root / rel
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def found(self, rel, text):
        """Complaints of check_layers about a tree with this one file."""
        self.write(rel, text)
        complaints = check_layers.check(self.root)
        (self.root / rel).unlink()
        return complaints

    def assert_found(self, rule, rel, text):
        complaints = self.found(rel, text)
        self.assertTrue(any(rule in complaint for complaint in complaints),
                        f"{rel}: {text[:60]!r} gives {complaints}, wanted {rule!r}")

    def assert_clean(self, rel, text):
        self.assertEqual(self.found(rel, text), [], f"{rel}: {text[:60]!r}")


class Includes(Seeded):
    def test_direction(self):
        self.assert_found("layer: transport -> collectives", "transport/a.cpp", '#include "collectives/b.hpp"\n')
        self.assert_found("layer: examples -> transport", "examples/a.cpp", '#include "transport/b.hpp"\n')
        self.assert_found("layer: perf -> collectives", "perf/a.cpp", '#  include "collectives/b.hpp"\n')
        self.assert_found("layer: collectives -> tests", "collectives/a.hpp", '#include "tests/b.hpp"\n')
        self.assert_clean("collectives/a.cpp", '#include "transport/b.hpp"\n#include "m2n/c.hpp"\n')
        self.assert_clean("transport/a.cpp", '// #include "collectives/b.hpp"\n')

    def test_plugins(self):
        self.assert_found("seam", "plugins/ucx/a.cpp", '#include "transport/doorbell.hpp"\n')
        self.assert_found("seam", "plugins/ucx/a.cpp", '#include "plugins/mpi/b.hpp"\n')
        self.assert_clean("plugins/ucx/a.cpp", '#include "transport/transport.hpp"\n#include <ucp/api/ucp.h>\n'
                                               '#include "plugins/ucx/b.hpp"\n')

    def test_vendor(self):
        for text in ("<mpi.h>", "<nccl.h>", "<cuda_runtime.h>", "<rdma/fabric.h>", "<ucp/api/ucp.h>",
                     "<gtest/gtest.h>", "<nlohmann/json.hpp>", "<cblas.h>", "<hwloc.h>", "<dlfcn.h>"):
            self.assert_found("vendor", "collectives/a.cpp", f"#include {text}\n")
        self.assert_found("vendor", "perf/a.cpp", "#include <mpi.h>\n")
        self.assert_clean("perf/baseline/a.cpp", "#include <mpi.h>\n")

    def test_contract(self):
        self.assert_found("not a standard header", "include/m2n/a.hpp", "#include <sys/mman.h>\n")
        self.assert_found("not a standard header", "include/m2n/a.hpp", '#include "other/b.hpp"\n')
        self.assert_found("layer: include -> transport", "include/m2n/a.hpp", '#include "transport/b.hpp"\n')
        self.assert_found("headers only", "include/m2n/a.cpp", "\n")
        self.assert_clean("include/m2n/a.hpp", '#include <vector>\n#include "m2n/b.hpp"\n')

    def test_shape(self):
        self.assert_found("relative", "transport/a.cpp", '#include "../include/m2n/b.hpp"\n')
        self.assert_found("no such layer", "runtime/a.cpp", "\n")


class Words(Seeded):
    def test_environment(self):
        self.assert_found("environment", "transport/a.cpp", 'auto x = std::getenv("A");\n')
        self.assert_found("environment", "collectives/a.cpp", 'auto x = secure_getenv("A");\n')
        self.assert_clean("transport/env.cpp", 'auto x = std::getenv("A");\n')
        self.assert_clean("transport/a.cpp", '// getenv("A")\nauto x = "getenv(";\n')

    def test_mutex(self):
        self.assert_found("mutex", "collectives/a.hpp", "std::mutex lock;\n")
        self.assert_found("mutex", "collectives/a.hpp", "std::condition_variable wake;\n")
        self.assert_clean("transport/store_tcp.cpp", "std::mutex lock;\n")

    def test_ends_the_process(self):
        for text in ("std::abort();", "abort();", "::exit(1);", "_exit(0);", "std::terminate();", "assert(x);",
                     "if (x) abort();", "void f() { exit(2); }"):
            self.assert_found("ends the process", "collectives/a.cpp", text + "\n")
        for text in ("channel.abort();", "impl_->abort();", "void abort() noexcept;", "static_assert(x);",
                     "void Channel::abort() noexcept;", "this->abort();", "ChannelImpl::abort();"):
            self.assert_clean("collectives/a.cpp", text + "\n")
        self.assert_clean("tests/a.cpp", "_exit(0);\n")

    def test_exceptions_and_threads(self):
        self.assert_found("throws", "collectives/a.cpp", "throw 1;\n")
        self.assert_found("thread", "collectives/a.cpp", "std::thread helper;\n")
        self.assert_clean("collectives/a.cpp", "std::thread::id owner;\n")

    def test_backend(self):
        self.assert_found("backend", "collectives/a.cpp", 'if (name == "ucx") return;\n')
        self.assert_found("backend", "transport/a.cpp", "void cuda();\n")
        self.assert_clean("collectives/a.cpp", "// as with UCX\n")
        self.assert_clean("plugins/ucx/a.cpp", "int ucx;\n")


def function(lines, head="int f(int a) const noexcept {"):
    return head + "\n" + "  ++a;\n" * (lines - 2) + "}\n"


class Sizes(Seeded):
    def test_file(self):
        self.assert_found("401 lines", "tests/a.cpp", "\n" * 401)
        self.assert_clean("tests/a.cpp", "\n" * 400)

    def test_function(self):
        self.assert_found("61 lines", "perf/a.cpp", function(61))
        self.assert_clean("perf/a.cpp", function(60))
        self.assert_clean("transport/row_kernels_x.cpp", function(120))
        self.assert_found("121 lines", "transport/row_kernels_x.cpp", function(121))
        for head in ("TEST(Suite, name) {", "auto f() -> std::vector<int> {", "Foo::Foo(int a) : b_{a}, c_{} {",
                     "Foo::Foo(int a)\n    : b_(a) {", "template <class T>\nT f(T a) requires std::integral<T> {",
                     "bool operator()(int a) const {", '__attribute__((target("avx2"))) void f(int a) {'):
            self.assert_found("size", "perf/a.cpp", function(70, "namespace x {\nstruct Y {\n" + head) + "}\n}\n")

    def test_not_functions(self):
        long = "  int a;\n" * 70
        for head in ("namespace x {", "struct alignas(64) X {", "class X : public Y<int> {", "enum class X {"):
            self.assert_clean("perf/a.cpp", f"{head}\n{long}}};\n")
        self.assert_clean("perf/a.cpp", "constexpr int table[] = {\n" + "1,\n" * 70 + "};\n")

    def test_counter(self):
        code = tree.blank('int f() {\n  g("}", \'}\', R"(})");  // }\n  /* } */\n  auto h = [] { return 1; };\n}\n'
                          "int k(int a) { return 10'000; }\n")
        self.assertEqual(functions.functions_in(code), [("f", 1, 5), ("k", 6, 6)])
        code = "#define A(x) \\\n  if (x) {\nint f() {\n#if B\n}\n#endif\n"
        self.assertEqual(functions.functions_in(code), [("f", 3, 5)])


class Texts(Seeded):
    def texts(self, rel, text):
        self.write(rel, text)
        complaints = check_text.check(self.root)
        (self.root / rel).unlink()
        return complaints

    def test_rules(self):
        for rule, text in (("path of a machine", "see /ho" "me/someone/x"), ("path of a machine", "cd /wo" "rk/main"),
                           ("path of a machine", '"/ro' 'ot/.cache"'), ("registry", "FROM docker" ".io/library"),
                           ("registry", "https://pypi" ".org/simple"), ("unfinished", "// TO" "DO: later"),
                           ("unfinished", "# FIX" "ME"), ("trailing space", "x "), ("conflict", "<<<<" "<<< HEAD")):
            complaints = self.texts("docs/a.md", text + "\n")
            self.assertTrue(any(rule in complaint for complaint in complaints), f"{text!r}: {complaints}")
        self.assertTrue(self.texts("docs/a.md", "no end"))
        self.assertEqual(self.texts("docs/a.md", "the work/sleep ratio, $root/work/x, a todo list, /dev/shm/x\n"), [])

    def test_binary_is_left_alone(self):
        (self.root / "a.bin").write_bytes(b"\0 /ro" b"ot/x ")
        self.assertEqual(check_text.check(self.root), [])


class Tools(Seeded):
    def test_format(self):
        self.write("tests/a.cpp", "int  f( ){return 1;}\n")
        self.assertEqual(len(check_format.check(self.root, "Google")), 1)
        self.write("tests/a.cpp", "int f() { return 1; }\n")
        self.assertEqual(check_format.check(self.root, "Google"), [])

    def test_shell(self):
        path = self.write("run", "#!/usr/bin/env bash\nif true; then\n")
        path.chmod(0o755)
        self.assertEqual(len(check_shell.check(self.root)), 1)
        self.write("run", "#!/usr/bin/env bash\ntrue\n")
        self.assertEqual(check_shell.check(self.root), [])
        path.chmod(0o644)
        self.assertEqual(len(check_shell.check(self.root)), 1)

    def test_headers(self):
        self.write("transport/a.hpp", "#pragma once\ninline std::string f() { return {}; }\n")
        self.assertEqual(len(check_headers.check(self.root)), 1)
        self.write("transport/a.hpp", "#pragma once\n#include <string>\ninline std::string f() { return {}; }\n")
        self.assertEqual(check_headers.check(self.root), [])
        self.write("include/m2n/b.hpp", "struct X {};\n")
        self.assertEqual(len(check_headers.check(self.root)), 1, "included twice")

    def test_tidy(self):
        config = f"--config-file={tree.ROOT / '.clang-tidy'}"
        bad = {"bugprone-use-after-move": "#include <string>\n#include <utility>\nstd::string f(std::string a) {\n"
                                          "  std::string b = std::move(a);\n  return a + b;\n}\n",
               "performance-for-range-copy": "#include <string>\n#include <vector>\n"
                                             "unsigned long f(const std::vector<std::string>& v) {\n"
                                             "  unsigned long n = 0;\n  for (auto s : v) n += s.size();\n"
                                             "  return n;\n}\n",
               "readability-function-size": "int f(int a, int b, int c, int d, int e, int g) {\n"
                                            "  return a + b + c + d + e + g;\n}\n"}
        for name, text in bad.items():
            path = self.write("a.cpp", text)
            self.assertIn(name, check_tidy.run([config, str(path), "--", "-std=c++20"], path))
        path = self.write("a.cpp", "int f(int a) { return a + 1; }\n")
        self.assertEqual(check_tidy.run([config, str(path), "--", "-std=c++20"], path), "")


def load(rel):
    spec = importlib.util.spec_from_file_location("loaded", tree.ROOT / rel)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Symbols(unittest.TestCase):
    def test_complaints(self):
        complaint = load("tests/install/symbols.py").complaint
        for kind, symbol in (("T", "helper(int)"), ("T", "m2n::transport::open_transport(int)"),
                             ("V", "vtable for m2n::transport::Log"), ("T", "std::foo()"), ("B", "table"),
                             ("T", "m2n::(anonymous namespace)::f()")):
            self.assertIsNotNone(complaint(kind, symbol), symbol)
        for kind, symbol in (("T", "m2n::version()"), ("V", "vtable for m2n::Store"),
                             ("W", "std::vector<int, std::allocator<int> >::~vector()")):
            self.assertIsNone(complaint(kind, symbol), symbol)


if __name__ == "__main__":
    unittest.main(verbosity=1)
