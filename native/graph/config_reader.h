// Hyperparameters out of GGUF metadata, each checked against limits before anything is computed or allocated from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/gguf.h"
#include "treadle/kernels.h"

namespace treadle {

// Keys are given without the architecture, which is their prefix in the file. Throws ModelFileError naming the key.
class ConfigReader {
 public:
    ConfigReader(const GgufFile& file, int64_t context_length);

    const GgufFile& file() const { return file_; }
    const std::string& architecture() const { return architecture_; }
    int64_t context_length() const { return context_length_; }  // see LoadOptions
    std::string key(const char* name) const { return architecture_ + "." + name; }
    bool has(const char* name) const { return file_.find(key(name)) != nullptr; }

    bool is_array(const char* name) const;
    int32_t integer(const char* name, uint64_t low, uint64_t high) const;
    int32_t integer_or(const char* name, int32_t fallback, uint64_t low, uint64_t high) const;
    // An array of `count` flags, one per layer; empty if the key is no array.
    std::vector<bool> flags(const char* name, size_t count) const;
    // An array of `count` numbers, one per layer, each from `low` to `high`.
    std::vector<int32_t> integers(const char* name, size_t count, uint64_t low, uint64_t high) const;
    double real_or(const char* name, double fallback, double low, double high) const;
    SoftCap soft_cap(const char* name, double fallback) const;  // 0: none

 private:
    int32_t checked(const char* name, uint64_t value, uint64_t low, uint64_t high) const;

    const GgufFile& file_;
    int64_t context_length_;
    std::string architecture_;
};

}  // namespace treadle
