// What the machine gives at this moment: the limits that speeds are measured against.
//
// A shared machine changes from second to second, so ask for short windows and take the best of several.
#pragma once

#include <cstddef>
#include <cstdint>

#include "treadle/kernels.h"
#include "treadle/thread_pool.h"

namespace treadle {

class LimitProbe {
 public:
    // `memory` is larger than every cache and has been written: untouched pages are all the same page of zeros. At
    // least 64 bytes, and their address a multiple of 64.
    LimitProbe(ThreadPool& pool, const KernelTable& kernels, const uint8_t* memory, size_t num_bytes);

    // All threads together, over about so many seconds.
    double read_bytes_per_second(double seconds);
    // Multiplications and additions in registers with the instructions of the kernels' int8 products, and fused ones of
    // floats, all threads together.
    double int8_ops_per_second(double seconds);
    double float_ops_per_second(double seconds);

 private:
    double ops_per_second(PeakFn peak, double seconds);

    ThreadPool& pool_;
    const KernelTable& kernels_;
    const uint8_t* memory_;
    int64_t piece_bytes_;
    int64_t num_pieces_;
    int64_t next_piece_ = 0;  // windows go on where the last one ended, so nothing is left in the cache
};

}  // namespace treadle
