#!/usr/bin/env bash
# Installs a build into an empty prefix, moves the tree, and uses it as an outside project would: by
# find_package and by pkg-config. Then looks at what the shared library needs and shows.
# usage: run.sh SOURCE_DIR BUILD_DIR CXX_COMPILER
set -euo pipefail
source_dir=$1 build_dir=$2 compiler=$3
here=$source_dir/tests/install
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

echo "-- install"
cmake --install "$build_dir" --prefix "$scratch/first" > "$scratch/install.log"
mv "$scratch/first" "$scratch/prefix"  # nothing may remember where it was installed
prefix=$scratch/prefix
library=$(find "$prefix" -name 'libm2n.so.*.*.*' -type f)
library_dir=$(dirname "$library")

echo "-- headers: exactly the public ones"
diff <(cd "$source_dir/include" && find m2n -name '*.hpp' | sort) \
     <(cd "$prefix/include" && find . -type f | sed 's,^\./,,' | sort) \
  || fail "installed headers are not those of include/m2n"

echo "-- an outside project with find_package"
cmake -S "$here/outside" -B "$scratch/outside" -DCMAKE_PREFIX_PATH="$prefix" \
      -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_COMPILER_LAUNCHER= > "$scratch/configure.log" \
  || { cat "$scratch/configure.log"; exit 1; }
cmake --build "$scratch/outside" > "$scratch/build.log" || { cat "$scratch/build.log"; exit 1; }
"$scratch/outside/outside" || fail "the program built with find_package"
if cmake -S "$here/outside" -B "$scratch/newer" -DCMAKE_PREFIX_PATH="$prefix" -DWANTED_VERSION=99.0 \
      -DCMAKE_CXX_COMPILER="$compiler" > /dev/null 2>&1; then
  fail "find_package(m2n 99.0) was satisfied"
fi

echo "-- the same with pkg-config"
export PKG_CONFIG_PATH=$library_dir/pkgconfig
read -ra flags <<< "$(pkg-config --cflags --libs m2n)"
"$compiler" -std=c++20 -Wall -Wextra -Werror "$here/outside/main.cpp" -o "$scratch/by_pkg_config" "${flags[@]}"
LD_LIBRARY_PATH=$library_dir "$scratch/by_pkg_config" || fail "the program built with pkg-config"

echo "-- soname"
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname =~ ^libm2n\.so\.[0-9]+\.[0-9]+$ ]] || fail "soname is '$soname'"
[[ -e $library_dir/$soname ]] || fail "no file of that name: $soname"

echo "-- needed libraries"
allowed='^(libc\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1|libm\.so\.6|libcrypto\.so\.3|ld-linux-[a-z0-9-]+\.so\.[12])$'
while read -r needed; do
  [[ $needed =~ $allowed ]] || fail "needs $needed"
done < <(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
readelf -d "$library" | grep -E '\((RPATH|RUNPATH)\)' && fail "has a run path"

echo "-- exported symbols"
python3 "$here/symbols.py" "$library" || failures=$((failures + 1))

if ((failures)); then
  echo "install test: $failures failures" >&2
  exit 1
fi
echo "install test: passed"
