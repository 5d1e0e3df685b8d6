#include "shards.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "treadle/errors.h"
#include "treadle/text.h"

namespace treadle::gguf {

namespace {

constexpr char kSplitCount[] = "split.count";
constexpr char kSplitNumber[] = "split.no";
constexpr char kSplitTensors[] = "split.tensors.count";
constexpr uint64_t kMaxReadBytes = uint64_t{1} << 30;  // Linux reads at most 2 GiB at a time

// A read-only view of the start of a file. It lives only while the header is parsed: a page of a map whose file shrank
// raises SIGBUS when touched, so nothing that outlives open_shard() may depend on it.
class Map {
 public:
    Map(const std::string& path, int descriptor, uint64_t num_bytes) : num_bytes_(num_bytes) {
        address_ = mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (address_ == MAP_FAILED)
            throw UsageError(printable(path) + ": cannot map the file: " + std::strerror(errno));
    }
    Map(const Map&) = delete;
    Map& operator=(const Map&) = delete;
    ~Map() { munmap(address_, num_bytes_); }
    std::span<const uint8_t> bytes() const { return {static_cast<const uint8_t*>(address_), num_bytes_}; }

 private:
    void* address_;
    uint64_t num_bytes_;
};

bool same(const GgufValue& a, const GgufValue& b) {
    const auto* left = std::get_if<std::shared_ptr<GgufArray>>(&a);
    const auto* right = std::get_if<std::shared_ptr<GgufArray>>(&b);
    if (left == nullptr || right == nullptr) return a == b;
    const auto* left_nested = std::get_if<std::vector<GgufValue>>(&(*left)->items);
    const auto* right_nested = std::get_if<std::vector<GgufValue>>(&(*right)->items);
    if (left_nested == nullptr || right_nested == nullptr) return (*left)->items == (*right)->items;
    return std::equal(left_nested->begin(), left_nested->end(), right_nested->begin(), right_nested->end(), same);
}

// Keys that are about the file and not about the model.
bool is_per_file(const std::string& key) { return key == kSplitNumber || key == "general.alignment"; }

class JoinedFile final : public GgufFile {
 public:
    explicit JoinedFile(std::vector<Shard> shards) : shards_(std::move(shards)), path_(shards_[0].path) {
        check_split();
        size_t num_keys = 0;
        size_t num_tensors = 0;
        for (const Shard& shard : shards_) {
            file_bytes_ += shard.file_bytes;
            num_keys += shard.header.metadata.size();
            num_tensors += shard.header.tensors.size();
        }
        // The indexes point at the names inside these two, which therefore must never move.
        metadata_.reserve(num_keys);
        tensors_.reserve(num_tensors);
        for (size_t i = 0; i < shards_.size(); ++i) {
            adopt_keys(shards_[i]);
            adopt_tensors(shards_[i], i);
        }
    }

    const std::string& path() const override { return path_; }
    uint64_t file_bytes() const override { return file_bytes_; }
    const std::vector<std::pair<std::string, GgufValue>>& metadata() const override { return metadata_; }
    const std::vector<GgufTensor>& tensors() const override { return tensors_; }

    const GgufValue* find(std::string_view key) const override {
        const auto found = key_index_.find(key);
        return found == key_index_.end() ? nullptr : &metadata_[found->second].second;
    }

    const GgufTensor* tensor(std::string_view name) const override {
        const auto found = tensor_index_.find(name);
        return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
    }

    void read(const GgufTensor& tensor, uint64_t offset, uint64_t count, uint8_t* out) const override;

 private:
    [[noreturn]] static void fail(const Shard& shard, const std::string& problem) {
        throw ModelFileError(printable(shard.path) + ": " + problem);
    }
    static std::optional<uint64_t> split_value(const Shard& shard, const char* key);
    void check_split() const;
    void adopt_keys(Shard& shard);
    void adopt_tensors(Shard& shard, size_t shard_index);

    std::vector<Shard> shards_;
    std::string path_;
    uint64_t file_bytes_ = 0;
    std::vector<std::pair<std::string, GgufValue>> metadata_;
    std::vector<GgufTensor> tensors_;
    // Ordered, because a hostile file can choose names whose hashes collide.
    std::map<std::string_view, size_t> key_index_;
    std::map<std::string_view, size_t> tensor_index_;
};

std::optional<uint64_t> JoinedFile::split_value(const Shard& shard, const char* key) {
    for (const auto& [name, value] : shard.header.metadata) {
        if (name != key) continue;
        if (const auto* number = std::get_if<uint64_t>(&value)) return *number;
        if (const auto* number = std::get_if<int64_t>(&value); number != nullptr && *number >= 0) return *number;
        fail(shard, "key " + quoted(key) + ": expected a non-negative integer");
    }
    return std::nullopt;
}

void JoinedFile::check_split() const {
    const size_t num_shards = shards_.size();
    if (num_shards == 1 && split_value(shards_[0], kSplitCount).value_or(1) <= 1) return;
    size_t num_tensors = 0;
    for (const Shard& shard : shards_) num_tensors += shard.header.tensors.size();
    const auto check = [](const Shard& shard, const char* key, uint64_t expected, const char* why) {
        const auto found = split_value(shard, key);
        if (found == expected) return;
        fail(shard, "key " + quoted(key) + ": expected " + std::to_string(expected) + " (" + why + "), found " +
                        (found ? std::to_string(*found) : "no such key"));
    };
    for (size_t i = 0; i < num_shards; ++i) {
        check(shards_[i], kSplitCount, num_shards, "a split model's files are named -00001-of-0000N.gguf");
        check(shards_[i], kSplitNumber, i, "the position the file's name gives");
        check(shards_[i], kSplitTensors, num_tensors, "the tensors of all shards together");
    }
}

void JoinedFile::adopt_keys(Shard& shard) {
    for (auto& [key, value] : shard.header.metadata) {
        const GgufValue* known = find(key);
        if (known == nullptr) {
            metadata_.emplace_back(std::move(key), std::move(value));
            key_index_.emplace(metadata_.back().first, metadata_.size() - 1);
        } else if (!is_per_file(key) && !same(*known, value)) {
            fail(shard, "key " + quoted(key) + ": the value is not the one in " + printable(path_) +
                            ", so this shard belongs to another model");
        }
    }
    shard.header.metadata.clear();
}

void JoinedFile::adopt_tensors(Shard& shard, size_t shard_index) {
    for (GgufTensor& tensor : shard.header.tensors) {
        if (this->tensor(tensor.name) != nullptr) fail(shard, "tensor " + quoted(tensor.name) + " occurs twice");
        tensor.shard = shard_index;
        tensors_.push_back(std::move(tensor));
        tensor_index_.emplace(tensors_.back().name, tensors_.size() - 1);
    }
    shard.header.tensors.clear();
}

void JoinedFile::read(const GgufTensor& tensor, uint64_t offset, uint64_t count, uint8_t* out) const {
    if (tensor.shard >= shards_.size() || offset > tensor.num_bytes || count > tensor.num_bytes - offset) {
        throw InternalError("read of " + std::to_string(count) + " bytes at " + std::to_string(offset) + " of tensor " +
                            quoted(tensor.name) + ", which has " + std::to_string(tensor.num_bytes));
    }
    const Shard& shard = shards_[tensor.shard];
    const uint64_t end = tensor.file_offset + offset + count;
    for (uint64_t position = end - count; position < end;) {
        const size_t wanted = std::min(end - position, kMaxReadBytes);
        const ssize_t got = pread(shard.file.descriptor(), out, wanted, static_cast<off_t>(position));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail(shard, "tensor " + quoted(tensor.name) + ": cannot read the file: " + std::strerror(errno));
        if (got == 0) {
            fail(shard, "tensor " + quoted(tensor.name) + ": it needs a file of " + std::to_string(end) +
                            " bytes, but the file ends at " + std::to_string(position) +
                            ": it was cut after it was opened");
        }
        position += static_cast<uint64_t>(got);
        out += got;
    }
}

}  // namespace

File::File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

File::~File() {
    if (descriptor_ >= 0) close(descriptor_);
}

Shard open_shard(const std::string& path) {
    const auto refuse = [&](const std::string& problem) { throw UsageError(printable(path) + ": " + problem); };
    // Without O_NONBLOCK a named pipe would wait for a writer.
    File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status;
    if (file.descriptor() < 0 || fstat(file.descriptor(), &status) != 0) {
        refuse(std::string("cannot open the model file: ") + std::strerror(errno));
    }
    if (S_ISDIR(status.st_mode)) refuse("expected a GGUF file, found a directory");
    if (!S_ISREG(status.st_mode)) refuse("expected a GGUF file, found a device, pipe or socket");
    if (status.st_size == 0) throw ModelFileError(printable(path) + ": expected a GGUF file, found an empty file");
    const auto file_bytes = static_cast<uint64_t>(status.st_size);
    Map map(path, file.descriptor(), std::min(file_bytes, kMaxHeaderBytes));
    Header header = parse_header(path, map.bytes(), file_bytes);
    return {path, std::move(file), file_bytes, std::move(header)};
}

std::shared_ptr<GgufFile> join_shards(std::vector<Shard> shards) {
    return std::make_shared<JoinedFile>(std::move(shards));
}

}  // namespace treadle::gguf
