#!/usr/bin/env bash
# Builds the GGUF fuzz target and runs it: native/fuzz/run.sh [seconds]. A finding ends the run with its input and exit code 1.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
build=build-fuzz
mkdir -p "$build"

if [[ -z ${CXX:-} ]]; then
  for version in "" -20 -19 -18 -17 -16 -15 -14; do
    if command -v "clang++$version" >/dev/null; then CXX=clang++$version; break; fi
  done
fi
: "${CXX:?needs clang with libFuzzer: on Debian, apt-get install clang libclang-rt-dev}"

cmake -S . -B "$build" -DCMAKE_CXX_COMPILER="$CXX" -DTREADLE_BUILD_FUZZERS=ON -DTREADLE_BUILD_PYTHON=OFF >"$build/configure.log" 2>&1 ||
  { cat "$build/configure.log"; exit 1; }
cmake --build "$build" --target gguf_fuzz --parallel
python3 native/fuzz/seeds.py "$build/corpus"
# Inputs stay small: the reader's limits are reached by lying about sizes, not by being long. Each takes milliseconds,
# so only one that hangs takes minutes, however busy the machine is.
exec "$build/native/fuzz/gguf_fuzz" "$build/corpus" -dict=native/fuzz/gguf.dict -artifact_prefix="$build/" \
  -max_total_time="$seconds" -max_len=16384 -timeout=120 -rss_limit_mb=1024 -malloc_limit_mb=256 -print_final_stats=1
