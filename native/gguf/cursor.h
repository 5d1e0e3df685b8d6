// Reads little-endian numbers and strings from bytes, never past their end; knows what it reads, for the error text.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "header.h"
#include "treadle/errors.h"
#include "treadle/text.h"

namespace treadle::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read by copying little-endian bytes");

class Cursor {
 public:
    Cursor(const std::string& path, std::span<const uint8_t> bytes, uint64_t file_bytes)
        : path_(path), bytes_(bytes), file_bytes_(file_bytes) {}

    uint64_t position() const { return position_; }
    uint64_t remaining() const { return bytes_.size() - position_; }

    // Names the object being read: "key 3 of 20", then, once its name is known, "key 'general.name'".
    void at(const char* noun, uint64_t number, uint64_t total) {
        noun_ = noun;
        number_ = number;
        total_ = total;
        name_ = {};
    }
    void named(std::string_view name) { name_ = name; }

    [[noreturn]] void fail(const std::string& problem) const {
        std::string object = noun_;
        if (!name_.empty()) {
            object += " " + quoted(name_);
        } else if (total_ != 0) {
            object += " " + std::to_string(number_) + " of " + std::to_string(total_);
        }
        throw ModelFileError(printable(path_) + ": " + object + ": " + problem);
    }

    // Throws unless `count` items of at least `item_bytes` each can still follow.
    void require(uint64_t count, uint64_t item_bytes, const char* what) const {
        if (count <= remaining() / item_bytes) return;
        if (bytes_.size() < file_bytes_) {
            fail("the header is longer than the limit of " + std::to_string(kMaxHeaderBytes) + " bytes");
        }
        fail(std::string(what) + " at byte " + std::to_string(position_) + " needs " +
             (item_bytes == 1 ? "" : std::to_string(count) + " x at least ") +
             std::to_string(item_bytes == 1 ? count : item_bytes) + " bytes, but only " + std::to_string(remaining()) +
             " of the file's " + std::to_string(file_bytes_) +
             " bytes are left: the file is cut short or its header is corrupt");
    }

    template <class T>
    T number(const char* what) {
        require(sizeof(T), 1, what);
        T value;
        std::memcpy(&value, bytes_.data() + position_, sizeof(T));
        position_ += sizeof(T);
        return value;
    }

    // The view is into the bytes being parsed.
    std::string_view string(const char* what) {
        const auto length = number<uint64_t>(what);
        require(length, 1, what);
        const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + position_, length);
        position_ += length;
        return text;
    }

 private:
    const std::string& path_;
    std::span<const uint8_t> bytes_;
    uint64_t file_bytes_;
    uint64_t position_ = 0;
    const char* noun_ = "header";
    std::string_view name_;
    uint64_t number_ = 0;
    uint64_t total_ = 0;
};

}  // namespace treadle::gguf
