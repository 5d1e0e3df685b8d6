// The public face of the room: which files belong to a path, and typed access to metadata.
#include <cstdio>

#include "shards.h"
#include "treadle/errors.h"
#include "treadle/text.h"

namespace treadle {

namespace {

// "dir/model-00001-of-00003.gguf" is file 1 of 3 with the stem "dir/model".
struct SplitName {
    std::string stem;
    unsigned number;
    unsigned count;

    std::string path(unsigned shard_number) const {
        char suffix[64];
        std::snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", shard_number, count);
        return stem + suffix;
    }
};

std::optional<SplitName> parse_split_name(const std::string& path) {
    constexpr size_t kSuffixLength = sizeof("-00001-of-00002.gguf") - 1;
    if (path.size() < kSuffixLength) return std::nullopt;
    SplitName name{path.substr(0, path.size() - kSuffixLength), 0, 0};
    const std::string suffix = path.substr(name.stem.size());
    if (std::sscanf(suffix.c_str(), "-%5u-of-%5u.gguf", &name.number, &name.count) != 2) return std::nullopt;
    // Formatting it back refuses signs, blanks and short numbers, which sscanf takes.
    if (name.number < 1 || name.number > name.count || name.path(name.number) != path) return std::nullopt;
    return name;
}

const char* kind_of(const GgufValue& value) {
    constexpr const char* kKinds[] = {"a bool",  "an unsigned integer", "a signed integer", "a float", "a string",
                                      "an array"};
    return kKinds[value.index()];
}

[[noreturn]] void refuse_kind(const GgufFile& file, std::string_view key, const char* expected,
                              const GgufValue& value) {
    const auto* negative = std::get_if<int64_t>(&value);
    const std::string found = negative != nullptr ? std::to_string(*negative) : kind_of(value);
    throw ModelFileError(printable(file.path()) + ": key " + quoted(key) + ": expected " + expected + ", found " +
                         found);
}

template <class T>
std::optional<T> get(const GgufFile& file, std::string_view key, const char* expected) {
    const GgufValue* value = file.find(key);
    if (value == nullptr) return std::nullopt;
    if (const T* found = std::get_if<T>(value)) return *found;
    refuse_kind(file, key, expected, *value);
}

}  // namespace

std::shared_ptr<GgufFile> GgufFile::open(const std::string& path) {
    const auto name = parse_split_name(path);
    if (name && name->number != 1) {
        throw UsageError(printable(path) + ": this is shard " + std::to_string(name->number) + " of " +
                         std::to_string(name->count) + "; open the first, " + printable(name->path(1)));
    }
    std::vector<gguf::Shard> shards;
    shards.push_back(gguf::open_shard(path));
    for (unsigned number = 2; name && number <= name->count; ++number) {
        try {
            shards.push_back(gguf::open_shard(name->path(number)));
        } catch (const UsageError& error) {
            throw ModelFileError(printable(path) + ": shard " + std::to_string(number) + " of " +
                                 std::to_string(name->count) + " is missing: " + error.what());
        }
    }
    return gguf::join_shards(std::move(shards));
}

std::optional<uint64_t> GgufFile::get_uint(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (const auto* number = std::get_if<uint64_t>(value)) return *number;
    if (const auto* number = std::get_if<int64_t>(value); number != nullptr && *number >= 0) return *number;
    refuse_kind(*this, key, "an unsigned integer", *value);
}

std::optional<double> GgufFile::get_float(std::string_view key) const { return get<double>(*this, key, "a float"); }

std::optional<bool> GgufFile::get_bool(std::string_view key) const { return get<bool>(*this, key, "a bool"); }

std::optional<std::string_view> GgufFile::get_string(std::string_view key) const {
    return get<std::string_view>(*this, key, "a string");
}

}  // namespace treadle
