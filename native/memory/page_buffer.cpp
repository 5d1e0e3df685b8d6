#include <sys/mman.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cerrno>
#include <cstring>
#include <utility>

#include "treadle/errors.h"
#include "treadle/memory.h"

namespace treadle {

PageBuffer::PageBuffer(size_t num_bytes, const std::string& purpose) : num_bytes_(num_bytes) {
    if (num_bytes == 0) return;
    void* mapped = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        throw CapacityError("cannot reserve " + std::to_string(num_bytes) + " bytes for " + purpose + ": " +
                            std::strerror(errno));
    }
    data_ = static_cast<uint8_t*>(mapped);
#ifdef MADV_HUGEPAGE
    // Advice only: where huge pages are switched off, 4 KiB pages serve as well, only slower.
    madvise(data_, num_bytes, MADV_HUGEPAGE);
#endif
}

PageBuffer::~PageBuffer() {
    if (data_ != nullptr) munmap(data_, num_bytes_);
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
}

#if defined(__linux__) && defined(SYS_mbind)
void PageBuffer::prefer_node(size_t begin, size_t num_bytes, int node) const {
    constexpr int kPreferred = 1;  // MPOL_PREFERRED of the kernel's linux/mempolicy.h
    constexpr size_t kMaxNodes = 1024, kBits = 8 * sizeof(unsigned long);
    if (node < 0 || static_cast<size_t>(node) >= kMaxNodes) return;
    unsigned long mask[kMaxNodes / kBits] = {};
    mask[static_cast<size_t>(node) / kBits] = 1ul << static_cast<size_t>(node) % kBits;
    syscall(SYS_mbind, data_ + begin, num_bytes, kPreferred, mask, kMaxNodes + 1, 0);
}
#else
void PageBuffer::prefer_node(size_t, size_t, int) const {}
#endif

void trim_heap() {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

int PageBuffer::lock() const { return data_ == nullptr || mlock(data_, num_bytes_) == 0 ? 0 : errno; }

}  // namespace treadle
