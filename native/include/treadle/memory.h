// Large zeroed memory straight from the kernel, with huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace treadle {

class PageBuffer {
 public:
    PageBuffer() = default;
    // Reserves num_bytes; pages are taken when first touched. Throws CapacityError naming `purpose`.
    PageBuffer(size_t num_bytes, const std::string& purpose);
    ~PageBuffer();
    PageBuffer(PageBuffer&& other) noexcept;
    PageBuffer& operator=(PageBuffer&& other) noexcept;
    PageBuffer(const PageBuffer&) = delete;
    PageBuffer& operator=(const PageBuffer&) = delete;

    uint8_t* data() const { return data_; }
    size_t num_bytes() const { return num_bytes_; }

    // Lets pages from `begin` on, a multiple of the page size, come from a NUMA node while it has room. Before they are
    // touched; advice only, as a container may not be allowed to.
    void prefer_node(size_t begin, size_t num_bytes, int node) const;

    // Keeps the pages in RAM. Returns 0 or the errno of mlock.
    int lock() const;

 private:
    uint8_t* data_ = nullptr;
    size_t num_bytes_ = 0;
};

// Gives memory that was freed with free() and delete back to the system, where the C library keeps it otherwise.
void trim_heap();

// Hands out aligned pieces of a buffer; first measure with a null base, then again over the real one.
class Carver {
 public:
    explicit Carver(uint8_t* base) : base_(base) {}

    template <typename T>
    T* take(size_t count) {
        T* piece = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base_) + used_);
        used_ = (used_ + count * sizeof(T) + 63) / 64 * 64;
        return piece;
    }
    size_t used() const { return used_; }

 private:
    uint8_t* base_;
    size_t used_ = 0;
};

}  // namespace treadle
