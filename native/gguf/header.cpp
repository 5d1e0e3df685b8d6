#include "header.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string_view>
#include <type_traits>

#include "cursor.h"

namespace treadle::gguf {

namespace {

enum ValueType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
constexpr const char* kTypeNames[] = {"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                      "bool",  "string", "array",  "uint64", "int64",  "float64"};
// The fewest bytes a value can take: a string has its length, an array its element type and count.
constexpr uint64_t kMinBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
constexpr uint32_t kNumTypes = std::size(kMinBytes);

// Each limit is far above what models use and keeps memory for the parsed form of a hostile header in proportion.
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 18;
constexpr uint64_t kMaxArrayElements = 1 << 24;  // of all arrays together
constexpr uint64_t kMaxNameBytes = (1 << 16) - 1;
constexpr int kMaxArrayDepth = 8;
constexpr uint64_t kMaxElements = INT64_MAX;
constexpr uint32_t kMaxDims = 4;
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kMaxAlignment = 1 << 24;
constexpr char kAlignmentKey[] = "general.alignment";

using ArrayItems = decltype(GgufArray::items);

// The one type that metadata numbers of a kind are kept in.
template <class Stored>
constexpr auto widen(Stored value) {
    if constexpr (std::is_floating_point_v<Stored>) {
        return static_cast<double>(value);
    } else if constexpr (std::is_signed_v<Stored>) {
        return static_cast<int64_t>(value);
    } else {
        return static_cast<uint64_t>(value);
    }
}

std::string type_text(uint32_t type) {
    return type < kNumTypes ? kTypeNames[type] : "unknown type " + std::to_string(type);
}

class Parser {
 public:
    Parser(const std::string& path, std::span<const uint8_t> bytes, uint64_t file_bytes)
        : cursor_(path, bytes, file_bytes), file_bytes_(file_bytes) {
        header_.strings = std::make_unique<std::pmr::monotonic_buffer_resource>();
    }

    Header parse() {
        const uint64_t num_tensors = preamble();
        for (uint64_t i = 0; i < num_keys_; ++i) key_value(i);
        for (uint64_t i = 0; i < num_tensors; ++i) tensor_entry(i, num_tensors);
        place_tensors();
        return std::move(header_);
    }

 private:
    uint64_t preamble();
    void key_value(uint64_t index);
    GgufValue value(uint32_t type, int depth);
    GgufValue array(int depth);
    bool boolean();
    std::string_view text(const char* what);
    std::string_view own(std::string_view text);
    std::string_view name(const char* what);
    void alignment(uint32_t type, const GgufValue& value);
    void tensor_entry(uint64_t index, uint64_t total);
    void size_tensor(GgufTensor& tensor);
    void place_tensors();
    void refuse_overlaps();

    // The items of an array whose count has been checked against the bytes left.
    ArrayItems items(uint32_t type, uint64_t count, int depth);
    std::vector<bool> booleans(uint64_t count);
    std::vector<std::string_view> strings(uint64_t count);
    template <class Stored>
    ArrayItems numbers(uint64_t count) {
        using Item = decltype(widen(Stored{}));
        std::vector<Item> numbers(count);
        for (Item& item : numbers) item = widen(cursor_.number<Stored>("an element of the array"));
        return numbers;
    }

    Cursor cursor_;
    uint64_t file_bytes_;
    Header header_;
    uint64_t num_keys_ = 0;
    uint64_t array_elements_ = 0;
    uint32_t alignment_ = kDefaultAlignment;
    std::set<std::string_view> keys_;  // ordered, because a hostile file can choose keys whose hashes collide
};

uint64_t Parser::preamble() {
    const auto magic = cursor_.number<uint32_t>("the magic 'GGUF'");
    if (magic != 0x46554747) {
        const std::string_view found(reinterpret_cast<const char*>(&magic), sizeof magic);
        cursor_.fail("this is not a GGUF file: expected it to start with 'GGUF', found " + quoted(found));
    }
    const auto version = cursor_.number<uint32_t>("the version");
    if (version != 0 && (version & 0xFFFF) == 0) {
        cursor_.fail("big-endian GGUF files are not supported; convert it with gguf-convert-endian");
    }
    if (version != 2 && version != 3) {
        cursor_.fail("expected GGUF version 2 or 3, found " + std::to_string(version));
    }
    const auto num_tensors = cursor_.number<uint64_t>("the tensor count");
    num_keys_ = cursor_.number<uint64_t>("the key count");
    if (num_keys_ > kMaxKeys) {
        cursor_.fail("expected at most " + std::to_string(kMaxKeys) + " keys, found " + std::to_string(num_keys_));
    }
    if (num_tensors > kMaxTensors) {
        cursor_.fail("expected at most " + std::to_string(kMaxTensors) + " tensors, found " +
                     std::to_string(num_tensors));
    }
    return num_tensors;
}

std::string_view Parser::own(std::string_view text) {
    if (text.empty()) return {};
    char* copy = static_cast<char*>(header_.strings->allocate(text.size(), 1));
    std::copy(text.begin(), text.end(), copy);
    return {copy, text.size()};
}

std::string_view Parser::text(const char* what) {
    const std::string_view found = cursor_.string(what);
    if (!is_utf8(found)) cursor_.fail(std::string(what) + " " + quoted(found) + " is not valid UTF-8");
    return found;
}

std::string_view Parser::name(const char* what) {
    const std::string_view found = text(what);
    if (found.empty()) cursor_.fail(std::string(what) + " is empty");
    if (found.size() > kMaxNameBytes) {
        cursor_.fail(std::string(what) + " has " + std::to_string(found.size()) + " bytes, expected at most " +
                     std::to_string(kMaxNameBytes));
    }
    return found;
}

void Parser::key_value(uint64_t index) {
    cursor_.at("key", index + 1, num_keys_);
    const std::string_view key = own(name("the key's name"));
    cursor_.named(key);
    if (!keys_.insert(key).second) cursor_.fail("the key occurs twice");
    const auto type = cursor_.number<uint32_t>("the value's type");
    GgufValue found = value(type, 0);
    if (key == kAlignmentKey) alignment(type, found);
    header_.metadata.emplace_back(std::string(key), std::move(found));
}

void Parser::alignment(uint32_t type, const GgufValue& value) {
    if (type != kU32) cursor_.fail("expected a value of type uint32, found " + type_text(type));
    const uint64_t found = std::get<uint64_t>(value);
    if (!std::has_single_bit(found) || found < 8 || found > kMaxAlignment) {
        cursor_.fail("expected a power of two from 8 to " + std::to_string(kMaxAlignment) + ", found " +
                     std::to_string(found));
    }
    alignment_ = static_cast<uint32_t>(found);
}

bool Parser::boolean() {
    const auto byte = cursor_.number<uint8_t>("a bool");
    if (byte > 1) cursor_.fail("expected a bool of 0 or 1, found " + std::to_string(byte));
    return byte == 1;
}

GgufValue Parser::value(uint32_t type, int depth) {
    constexpr char kWhat[] = "the value";
    switch (type) {
        case kU8:
            return widen(cursor_.number<uint8_t>(kWhat));
        case kI8:
            return widen(cursor_.number<int8_t>(kWhat));
        case kU16:
            return widen(cursor_.number<uint16_t>(kWhat));
        case kI16:
            return widen(cursor_.number<int16_t>(kWhat));
        case kU32:
            return widen(cursor_.number<uint32_t>(kWhat));
        case kI32:
            return widen(cursor_.number<int32_t>(kWhat));
        case kF32:
            return widen(cursor_.number<float>(kWhat));
        case kBool:
            return boolean();
        case kString:
            return own(text(kWhat));
        case kArray:
            return array(depth + 1);
        case kU64:
            return widen(cursor_.number<uint64_t>(kWhat));
        case kI64:
            return widen(cursor_.number<int64_t>(kWhat));
        case kF64:
            return widen(cursor_.number<double>(kWhat));
        default:
            cursor_.fail("expected a value type from 0 to " + std::to_string(kNumTypes - 1) + ", found " +
                         std::to_string(type));
    }
}

GgufValue Parser::array(int depth) {
    if (depth > kMaxArrayDepth) {
        cursor_.fail("arrays are nested deeper than the limit of " + std::to_string(kMaxArrayDepth));
    }
    const auto type = cursor_.number<uint32_t>("the array's element type");
    if (type >= kNumTypes) {
        cursor_.fail("expected an element type from 0 to " + std::to_string(kNumTypes - 1) + ", found " +
                     std::to_string(type));
    }
    const auto count = cursor_.number<uint64_t>("the array's length");
    cursor_.require(count, kMinBytes[type], "the array's contents");
    if (count > kMaxArrayElements - array_elements_) {
        cursor_.fail("with this array of " + std::to_string(count) +
                     " elements the header's arrays hold more than the limit of " + std::to_string(kMaxArrayElements));
    }
    array_elements_ += count;
    auto result = std::make_shared<GgufArray>();
    result->items = items(type, count, depth);
    return result;
}

ArrayItems Parser::items(uint32_t type, uint64_t count, int depth) {
    switch (type) {
        case kU8:
            return numbers<uint8_t>(count);
        case kI8:
            return numbers<int8_t>(count);
        case kU16:
            return numbers<uint16_t>(count);
        case kI16:
            return numbers<int16_t>(count);
        case kU32:
            return numbers<uint32_t>(count);
        case kI32:
            return numbers<int32_t>(count);
        case kF32:
            return numbers<float>(count);
        case kU64:
            return numbers<uint64_t>(count);
        case kI64:
            return numbers<int64_t>(count);
        case kF64:
            return numbers<double>(count);
        case kBool:
            return booleans(count);
        case kString:
            return strings(count);
        default: {
            std::vector<GgufValue> arrays(count);
            for (GgufValue& inner : arrays) inner = array(depth + 1);
            return arrays;
        }
    }
}

std::vector<bool> Parser::booleans(uint64_t count) {
    std::vector<bool> flags(count);
    for (uint64_t i = 0; i < count; ++i) flags[i] = boolean();
    return flags;
}

std::vector<std::string_view> Parser::strings(uint64_t count) {
    std::vector<std::string_view> strings(count);
    for (uint64_t i = 0; i < count; ++i) {
        const std::string_view found = cursor_.string("a string of the array");
        if (!is_utf8(found)) {
            cursor_.fail("element " + std::to_string(i) + ", " + quoted(found) + ", is not valid UTF-8");
        }
        strings[i] = own(found);
    }
    return strings;
}

void Parser::tensor_entry(uint64_t index, uint64_t total) {
    cursor_.at("tensor", index + 1, total);
    GgufTensor tensor;
    tensor.name = name("the tensor's name");
    cursor_.named(tensor.name);
    const auto num_dims = cursor_.number<uint32_t>("the number of dimensions");
    if (num_dims < 1 || num_dims > kMaxDims) {
        cursor_.fail("expected 1 to " + std::to_string(kMaxDims) + " dimensions, found " + std::to_string(num_dims));
    }
    for (uint32_t i = 0; i < num_dims; ++i) tensor.shape.push_back(cursor_.number<uint64_t>("a dimension"));
    tensor.format = cursor_.number<uint32_t>("the tensor's type");
    tensor.file_offset = cursor_.number<uint64_t>("the tensor's offset");
    size_tensor(tensor);
    header_.tensors.push_back(std::move(tensor));
}

void Parser::size_tensor(GgufTensor& tensor) {
    const GgufFormat* format = find_gguf_format(tensor.format);
    if (format == nullptr) cursor_.fail("its type " + std::to_string(tensor.format) + " is not a known ggml type");
    std::string shape = "[";
    for (const uint64_t dim : tensor.shape) shape += (shape.size() == 1 ? "" : ", ") + std::to_string(dim);
    shape += "]";
    uint64_t elements = 1;
    for (const uint64_t dim : tensor.shape) {
        if (dim == 0) cursor_.fail("its shape " + shape + " has a dimension of 0");
        if (dim > kMaxElements / elements) cursor_.fail("its shape " + shape + " has more than 2^63 - 1 elements");
        elements *= dim;
    }
    if (tensor.shape[0] % format->block_elements != 0) {
        cursor_.fail("expected rows of whole " + std::string(format->name) + " blocks of " +
                     std::to_string(format->block_elements) + " elements, found rows of " +
                     std::to_string(tensor.shape[0]) + " in its shape " + shape);
    }
    const uint64_t blocks = elements / format->block_elements;
    if (blocks > kMaxElements / format->block_bytes) {
        cursor_.fail("its shape " + shape + " of type " + format->name + " takes more than 2^63 - 1 bytes");
    }
    tensor.num_elements = elements;
    tensor.num_bytes = blocks * format->block_bytes;
}

// Turns offsets into the data section, which starts at the aligned end of the header, into offsets into the file.
void Parser::place_tensors() {
    const uint64_t data_start = (cursor_.position() + alignment_ - 1) / alignment_ * alignment_;
    for (GgufTensor& tensor : header_.tensors) {
        cursor_.named(tensor.name);
        const uint64_t offset = tensor.file_offset;
        if (offset % alignment_ != 0) {
            cursor_.fail("its data offset " + std::to_string(offset) + " is not a multiple of the alignment " +
                         std::to_string(alignment_));
        }
        if (data_start > file_bytes_ || offset > file_bytes_ - data_start ||
            tensor.num_bytes > file_bytes_ - data_start - offset) {
            // Far beyond any file the end may not fit 64 bits, so it is only told where it surely does.
            const bool near = offset < kMaxElements / 2 && tensor.num_bytes < kMaxElements / 2;
            cursor_.fail("its " + std::to_string(tensor.num_bytes) + " bytes at data offset " + std::to_string(offset) +
                         (near ? " need a file of " + std::to_string(data_start + offset + tensor.num_bytes) + " bytes"
                               : " lie far outside the file") +
                         ", but the file has " + std::to_string(file_bytes_) +
                         " bytes: it is cut short or its header is corrupt");
        }
        tensor.file_offset = data_start + offset;
    }
    refuse_overlaps();
}

void Parser::refuse_overlaps() {
    std::vector<const GgufTensor*> by_offset;
    by_offset.reserve(header_.tensors.size());
    for (const GgufTensor& tensor : header_.tensors) by_offset.push_back(&tensor);
    std::stable_sort(by_offset.begin(), by_offset.end(),
                     [](const GgufTensor* a, const GgufTensor* b) { return a->file_offset < b->file_offset; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
        const GgufTensor& before = *by_offset[i - 1];
        const uint64_t end = before.file_offset + before.num_bytes;
        if (by_offset[i]->file_offset >= end) continue;
        cursor_.named(by_offset[i]->name);
        cursor_.fail("its data at file offset " + std::to_string(by_offset[i]->file_offset) + " overlaps tensor " +
                     quoted(before.name) + ", which ends at " + std::to_string(end));
    }
}

}  // namespace

Header parse_header(const std::string& path, std::span<const uint8_t> bytes, uint64_t file_bytes) {
    return Parser(path, bytes, file_bytes).parse();
}

}  // namespace treadle::gguf
