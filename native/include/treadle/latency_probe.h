// How long one thread waits for what it reads, when each address is known only from what was read before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "treadle/thread_pool.h"

namespace treadle {

class LatencyProbe {
 public:
    // `memory` is writable, its address a multiple of 64. Worker 0 of the pool reads it.
    LatencyProbe(ThreadPool& pool, uint8_t* memory, size_t num_bytes);

    // In the first `num_bytes` of the memory, a power of two of at least 128, over about so many seconds.
    double seconds_per_load(size_t num_bytes, double seconds);

 private:
    ThreadPool& pool_;
    uint8_t* memory_;
    size_t num_bytes_;
    size_t linked_bytes_ = 0;  // what the lines form a circle over
};

}  // namespace treadle
