#!/usr/bin/env bash
# Cross-compiles the core for AArch64 and compares its kernel tables with `ref` under an emulator, kernel by kernel and
# in whole tiny models, once for each kind of processor that gets another set of tables; then compares `ref` itself with
# this machine's.
# Needs on Debian: apt-get install g++ g++-aarch64-linux-gnu qemu-user; cmake, and a python3 with the test packages.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=$(nproc)

build() {
  local folder=$1
  local log=$folder/log.txt
  shift
  mkdir -p "$folder"
  if ! { cmake -S . -B "$folder" -DTREADLE_BUILD_TESTS=ON -DTREADLE_BUILD_PYTHON=OFF "$@" &&
    cmake --build "$folder" --target kernels_test model_test threads_test --parallel "$jobs"; } >"$log" 2>&1 || grep -q 'warning:' "$log"; then
    tail -100 "$log"
    exit 1
  fi
}

# processor as the emulator calls it, tables that must run there
check() {
  local cpu=$1 isas=$2
  echo "-- $cpu"
  local emulator=(qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$cpu")
  TREADLE_EXPECT_ISAS=$isas "${emulator[@]}" build-aarch64/native/tests/kernels_test | tee "build-aarch64/result-$cpu.txt"
  "${emulator[@]}" build-aarch64/native/tests/model_test build-aarch64/models/*.gguf
}

build build-aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
python3 native/tests/tiny_models.py build-aarch64/models
qemu-aarch64 -L /usr/aarch64-linux-gnu build-aarch64/native/tests/threads_test
check max neon_i8mm,neon_dotprod,ref
check cortex-a76 neon_dotprod,ref
check cortex-a53 ref

build build-tests
echo "-- this machine"
build-tests/native/tests/threads_test
build-tests/native/tests/kernels_test | tee build-tests/result.txt
build-tests/native/tests/model_test build-aarch64/models/*.gguf
if [[ $(cat build-aarch64/result-*.txt build-tests/result.txt | grep -oE 'fingerprint of ref [0-9a-f]+' | sort -u | wc -l) != 1 ]]; then
  echo "ref gives other values on AArch64 than here"
  exit 1
fi
