// Buffers that end exactly at a page that may not be touched, so that a kernel reading or writing past its arrays stops
// the test that called it.
#pragma once

#include <stddef.h>
#include <string.h>

#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#define TREADLE_GUARD_PAGES 1
#endif

namespace treadle::bindings {

// `count` elements, every byte 0xff (NaN as a float), with a guard page on either side where the platform has mmap. The
// end is the tight side: the start is only as aligned as the length makes it.
template <class T>
class Guarded {
 public:
    explicit Guarded(size_t count) : count_(count) {
        const size_t num_bytes = count * sizeof(T);
#if defined(TREADLE_GUARD_PAGES)
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t inner = (num_bytes + page - 1) / page * page;
        mapped_bytes_ = inner + 2 * page;
        mapped_ = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
        if (mapped_ == MAP_FAILED) throw std::bad_alloc();
        char* start = static_cast<char*>(mapped_) + page;
        if (inner > 0 && mprotect(start, inner, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
        data_ = reinterpret_cast<T*>(start + inner - num_bytes);
#else
        data_ = new T[count + 1];
#endif
        if (num_bytes > 0) memset(static_cast<void*>(data_), 0xff, num_bytes);
    }

    Guarded(size_t count, const T* from) : Guarded(count) {
        if (count > 0) memcpy(static_cast<void*>(data_), from, count * sizeof(T));
    }

    ~Guarded() {
#if defined(TREADLE_GUARD_PAGES)
        munmap(mapped_, mapped_bytes_);
#else
        delete[] data_;
#endif
    }

    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t count() const { return count_; }

 private:
    size_t count_;
    T* data_ = nullptr;
#if defined(TREADLE_GUARD_PAGES)
    void* mapped_ = nullptr;
    size_t mapped_bytes_ = 0;
#endif
};

}  // namespace treadle::bindings
