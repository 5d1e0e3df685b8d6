// Fuzz target for the GGUF reader: any bytes either open as a model whose every tensor can be read, or end in one
// ModelFileError. An input is the files of a model one after the other, with kBetweenShards between them.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "shards.h"
#include "treadle/errors.h"

using treadle::GgufFile;
using treadle::GgufTensor;
using treadle::ModelFileError;

namespace {

constexpr std::string_view kBetweenShards = "\nSHARD\n";
constexpr size_t kMaxShards = 3;
constexpr uint64_t kPieceBytes = 512;

using Bytes = std::span<const uint8_t>;

#define REQUIRE(condition)                                           \
    if (!(condition)) {                                              \
        std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
        std::abort();                                                \
    }

std::vector<Bytes> cut_into_shards(Bytes input) {
    std::vector<Bytes> shards;
    while (shards.size() + 1 < kMaxShards) {
        const auto between = std::search(input.begin(), input.end(), kBetweenShards.begin(), kBetweenShards.end());
        if (between == input.end()) break;
        const auto length = static_cast<size_t>(between - input.begin());
        shards.push_back(input.first(length));
        input = input.subspan(length + kBetweenShards.size());
    }
    shards.push_back(input);
    return shards;
}

// Parses bytes that end where the sanitizer's guard begins.
bool header_is_valid(Bytes bytes) {
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    try {
        treadle::gguf::parse_header("fuzz", exact, exact.size());
        return true;
    } catch (const ModelFileError&) {
        return false;
    }
}

// One file in memory for each place in the list of shards, used again by every input.
class MemoryFile {
 public:
    explicit MemoryFile(size_t place)
        : descriptor_(memfd_create(("shard" + std::to_string(place)).c_str(), MFD_CLOEXEC)) {
        REQUIRE(descriptor_ >= 0);
    }
    void fill(Bytes bytes) const {
        resize(0);
        REQUIRE(pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    }
    void resize(uint64_t num_bytes) const { REQUIRE(ftruncate(descriptor_, static_cast<off_t>(num_bytes)) == 0); }
    std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
    int descriptor_;
};

void use_value(const treadle::GgufValue& value) {
    if (const auto* text = std::get_if<std::string_view>(&value)) {
        volatile char last = text->empty() ? '\0' : text->back();
        (void)last;
    } else if (const auto* array = std::get_if<std::shared_ptr<treadle::GgufArray>>(&value)) {
        if (const auto* nested = std::get_if<std::vector<treadle::GgufValue>>(&(*array)->items)) {
            for (const auto& inner : *nested) use_value(inner);
        } else if (const auto* texts = std::get_if<std::vector<std::string_view>>(&(*array)->items)) {
            for (const auto& text : *texts) use_value(text);
        }
    }
}

// A getter may refuse the kind of value; it may not do anything else.
template <class Get>
void tolerate_refusal(Get get) {
    try {
        get();
    } catch (const ModelFileError&) {
    }
}

void use_metadata(const GgufFile& file) {
    for (const auto& entry : file.metadata()) {
        const std::string& key = entry.first;
        REQUIRE(file.find(key) == &entry.second);
        use_value(entry.second);
        tolerate_refusal([&] { file.get_uint(key); });
        tolerate_refusal([&] { file.get_float(key); });
        tolerate_refusal([&] { file.get_bool(key); });
        tolerate_refusal([&] { file.get_string(key); });
    }
}

void check_piece(const GgufFile& file, const GgufTensor& tensor, Bytes shard, uint64_t offset, uint64_t count) {
    std::vector<uint8_t> data(count);
    file.read(tensor, offset, count, data.data());
    REQUIRE(std::equal(data.begin(), data.end(), shard.begin() + static_cast<ptrdiff_t>(tensor.file_offset + offset)));
}

void check_tensors(const GgufFile& file, const std::vector<Bytes>& shards) {
    for (const GgufTensor& tensor : file.tensors()) {
        REQUIRE(file.tensor(tensor.name) == &tensor);
        const Bytes shard = shards[tensor.shard];
        REQUIRE(tensor.num_bytes > 0 && tensor.num_bytes <= shard.size());
        REQUIRE(tensor.file_offset <= shard.size() - tensor.num_bytes);
        for (const GgufTensor& other : file.tensors()) {
            if (&other == &tensor || other.shard != tensor.shard) continue;
            REQUIRE(other.file_offset + other.num_bytes <= tensor.file_offset ||
                    tensor.file_offset + tensor.num_bytes <= other.file_offset);
        }
        const uint64_t piece = std::min(tensor.num_bytes, kPieceBytes);
        check_piece(file, tensor, shard, 0, piece);
        check_piece(file, tensor, shard, tensor.num_bytes - piece, piece);
    }
}

// After the files lost their data, reading must end in an error and metadata must stay readable.
void check_shrunken(const GgufFile& file, const std::vector<MemoryFile>& files, size_t num_shards) {
    for (size_t i = 0; i < num_shards; ++i) files[i].resize(1);
    use_metadata(file);
    uint8_t byte;
    for (const GgufTensor& tensor : file.tensors()) {
        bool refused = false;
        try {
            file.read(tensor, 0, 1, &byte);
        } catch (const ModelFileError&) {
            refused = true;
        }
        REQUIRE(refused);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static const std::vector<MemoryFile> files = [] {
        std::vector<MemoryFile> made;
        for (size_t i = 0; i < kMaxShards; ++i) made.emplace_back(i);
        return made;
    }();
    const std::vector<Bytes> shards = cut_into_shards({data, num_bytes});
    const bool all_valid = std::all_of(shards.begin(), shards.end(), header_is_valid);
    std::vector<treadle::gguf::Shard> opened;
    std::shared_ptr<GgufFile> model;
    bool joining = false;
    try {
        for (size_t i = 0; i < shards.size(); ++i) {
            files[i].fill(shards[i]);
            opened.push_back(treadle::gguf::open_shard(files[i].path()));
        }
        joining = true;
        model = treadle::gguf::join_shards(std::move(opened));
    } catch (const ModelFileError&) {
        REQUIRE(joining == all_valid);
        return 0;
    }
    REQUIRE(all_valid);
    use_metadata(*model);
    check_tensors(*model, shards);
    check_shrunken(*model, files, shards.size());
    return 0;
}
