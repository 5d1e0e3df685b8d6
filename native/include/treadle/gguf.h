// GGUF v2/v3 container (github.com/ggml-org/ggml/blob/master/docs/gguf.md): everything is checked before it is used.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace treadle {

// One metadata value. Arrays are homogeneous; strings are valid UTF-8 in memory the file object owns.
struct GgufArray;
using GgufValue = std::variant<bool, uint64_t, int64_t, double, std::string_view, std::shared_ptr<GgufArray>>;
struct GgufArray {
    std::variant<std::vector<bool>, std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>,
                 std::vector<std::string_view>, std::vector<GgufValue> /* nested */>
        items;
};

// How the elements of a tensor are stored: blocks of block_elements in block_bytes. A row holds whole blocks.
struct GgufFormat {
    uint32_t id;  // ggml type id
    const char* name;
    uint32_t block_elements;
    uint32_t block_bytes;
};

// Every format of the specification, also those the core cannot compute with.
std::span<const GgufFormat> gguf_formats();
const GgufFormat* find_gguf_format(uint32_t id);  // nullptr if the specification has no such type

struct GgufTensor {
    std::string name;
    uint32_t format = 0;          // ggml type id, always one that find_gguf_format() knows
    std::vector<uint64_t> shape;  // 1 to 4 dimensions, none 0; shape[0] is the contiguous dimension (columns)
    uint64_t num_elements = 0;
    uint64_t num_bytes = 0;
    uint64_t file_offset = 0;  // absolute, inside its shard
    size_t shard = 0;
};

class GgufFile {
 public:
    // Opens a file, or all shards of a split model when the name ends in -00001-of-0000N.gguf. Throws UsageError when
    // the path cannot be read or is not the first shard, ModelFileError when the contents are wrong.
    static std::shared_ptr<GgufFile> open(const std::string& path);
    virtual ~GgufFile() = default;

    virtual const std::string& path() const = 0;
    virtual uint64_t file_bytes() const = 0;                                             // all shards
    virtual const std::vector<std::pair<std::string, GgufValue>>& metadata() const = 0;  // file order
    virtual const GgufValue* find(std::string_view key) const = 0;
    virtual const std::vector<GgufTensor>& tensors() const = 0;
    virtual const GgufTensor* tensor(std::string_view name) const = 0;

    // Reads bytes [offset, offset + count) of a tensor's data with pread, so a file that shrank after open() ends in
    // ModelFileError and never in SIGBUS. Thread-safe.
    virtual void read(const GgufTensor& tensor, uint64_t offset, uint64_t count, uint8_t* out) const = 0;

    // Typed access; nullopt if the key is absent, ModelFileError naming key, expected and found type if it is of
    // another kind. A non-negative signed integer is accepted as unsigned: writers disagree about which of the two to
    // use.
    std::optional<uint64_t> get_uint(std::string_view key) const;
    std::optional<double> get_float(std::string_view key) const;
    std::optional<bool> get_bool(std::string_view key) const;
    std::optional<std::string_view> get_string(std::string_view key) const;
};

}  // namespace treadle
