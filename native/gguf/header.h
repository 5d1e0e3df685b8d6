// The header of one GGUF file: key-value pairs and tensor directory, parsed from bytes and checked against the file's
// size.
#pragma once

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "treadle/gguf.h"

namespace treadle::gguf {

// A header longer than this is refused; the largest vocabularies in use take about 20 MiB.
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;

struct Header {
    std::unique_ptr<std::pmr::monotonic_buffer_resource> strings;  // what every string_view below points into
    std::vector<std::pair<std::string, GgufValue>> metadata;
    std::vector<GgufTensor> tensors;  // inside the file, aligned, not overlapping; shard is left 0
};

// Parses `bytes`, the first bytes of a file of `file_bytes` bytes (all of it, or the first kMaxHeaderBytes). Nothing in
// the result points into `bytes`. Throws ModelFileError; `path` is for its text.
Header parse_header(const std::string& path, std::span<const uint8_t> bytes, uint64_t file_bytes);

}  // namespace treadle::gguf
