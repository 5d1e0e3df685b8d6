// Joins the headers of a model's files into one GgufFile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "header.h"

namespace treadle::gguf {

// A descriptor that closes itself.
class File {
 public:
    explicit File(int descriptor) : descriptor_(descriptor) {}
    File(File&& other) noexcept;
    File& operator=(File&&) = delete;
    ~File();
    int descriptor() const { return descriptor_; }

 private:
    int descriptor_;
};

struct Shard {
    std::string path;
    File file;
    uint64_t file_bytes;
    Header header;
};

// Opens one file and parses its header. Throws UsageError if the path cannot be read, ModelFileError if it is not valid
// GGUF.
Shard open_shard(const std::string& path);

// Checks that the files are all the shards of one model, in order, and joins them: keys of the first, tensors of all.
std::shared_ptr<GgufFile> join_shards(std::vector<Shard> shards);

}  // namespace treadle::gguf
