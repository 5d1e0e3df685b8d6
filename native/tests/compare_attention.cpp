// Attention over KV blocks.
#include <algorithm>

#include "comparison.h"

namespace treadle::tests {
namespace {

// Which positions of a block each row sees, and the cap of its scores.
struct Sight {
    Guarded<int32_t> first, limit;
    bool windowed;
    SoftCap cap;

    // Any limits; with `extras` also any windows and now and then a cap.
    Sight(Random& random, size_t rows, bool extras)
        : first(rows), limit(rows), windowed(extras), cap(extras && random.below(2) ? SoftCap{2.0f, 0.5f} : SoftCap{}) {
        for (size_t r = 0; r < rows; ++r) {
            const int32_t below = random.below(44);
            limit.data()[r] = below < 32 ? below : 32;
            const int32_t start = extras ? random.below(44) - 11 : 0;
            first.data()[r] = start > 0 ? start : 0;
            if (first.data()[r] >= limit.data()[r]) first.data()[r] = limit.data()[r] = 0;
        }
    }
};

// The state of an online softmax, and a step of it.
struct Attention {
    Guarded<float> max, sum, acc;

    Attention(size_t rows, size_t head_dim) : max(rows), sum(rows), acc(rows * head_dim) {
        std::fill_n(max.data(), max.count(), -kInf);
        std::fill_n(sum.data(), sum.count(), 0.0f);
        std::fill_n(acc.data(), acc.count(), 0.0f);
    }

    void step(const KernelTable& table, size_t head_dim, const Guarded<float>& q, const Guarded<uint16_t>& k,
              const Guarded<uint16_t>& v, const Sight& sight) {
        const Guarded<uint16_t> untouchable(0);  // the next K, which may be requested but not read
        const AttendArgs args{k.data(),
                              v.data(),
                              static_cast<int32_t>(head_dim),
                              static_cast<int32_t>(sight.limit.count()),
                              q.data(),
                              sight.limit.data(),
                              max.data(),
                              sum.data(),
                              acc.data(),
                              untouchable.data(),
                              sight.windowed ? sight.first.data() : nullptr,
                              sight.cap};
        table.attend_block(&args);
    }

    void step_q8_0(const KernelTable& table, size_t head_dim, const std::vector<ActTile>& q, const Guarded<uint8_t>& k,
                   const Guarded<uint8_t>& v, const Sight& sight) {
        const Guarded<uint8_t> untouchable(0);
        const AttendQ8Args args{k.data(),
                                v.data(),
                                static_cast<int32_t>(head_dim),
                                static_cast<int32_t>(sight.limit.count()),
                                q.data(),
                                sight.limit.data(),
                                max.data(),
                                sum.data(),
                                acc.data(),
                                untouchable.data(),
                                sight.windowed ? sight.first.data() : nullptr,
                                sight.cap};
        table.attend_block_q8_0(&args);
    }
};

// Three blocks with random limits, in two of them windows; `special` is one value of q, of K or of V, in sight or not,
// or none of them.
void compare_blocks(Comparison& c, Random& random, size_t rows, size_t head_dim, float spread, int special) {
    const size_t num_tiles = (rows + kQueryTile - 1) / kQueryTile;
    std::vector<float> q = random.values(num_tiles * head_dim * kQueryTile, spread);
    if (special >= 0 && special % 3 == 0) q[head_dim / 2 * kQueryTile] = kSpecials[special / 3];
    const Guarded<float> query(q.size(), q.data());
    Attention found(rows, head_dim), expected(rows, head_dim);
    for (int block = 0; block < 3; ++block) {
        Guarded<uint16_t> k(head_dim * kKvBlockTokens), v(head_dim * kKvBlockTokens);
        for (size_t i = 0; i < k.count(); ++i) {
            k.data()[i] = random.small_f16() + (3 << 10);
            v.data()[i] = random.small_f16() + (3 << 10);
        }
        if (special >= 0 && special % 3 > 0) {
            Guarded<uint16_t>& target = special % 3 == 1 ? k : v;
            const Guarded<float> value(8, std::vector<float>(8, kSpecials[special / 3]).data());
            Guarded<uint16_t> halves(8 * kKvBlockTokens);
            c.ref.store_v(value.data(), 8, 0, halves.data());
            target.data()[static_cast<size_t>(random.below(static_cast<int>(target.count())))] = halves.data()[0];
        }
        const Sight sight(random, rows, special < 0 && block > 0);
        found.step(c.table, head_dim, query, k, v, sight);
        expected.step(c.ref, head_dim, query, k, v, sight);
    }
    const std::string what = "attend_block, " + to_string(rows) + " rows of " + to_string(head_dim) + ", ";
    c.expect_same(what + "max", found.max, expected.max);
    c.expect_same(what + "sum", found.sum, expected.sum);
    c.expect_same(what + "acc", found.acc, expected.acc);
}

// Random bytes with sane scales, some of them odd, in three q8_0 blocks with random limits and, in two of them,
// windows.
void compare_q8_0_blocks(Comparison& c, Random& random, size_t rows, size_t head_dim, float spread, bool odd_scales) {
    const size_t num_tiles = (rows + kQueryTile - 1) / kQueryTile, size = num_tiles * kQueryTile * head_dim;
    Guarded<int8_t> quants(size);
    Guarded<float> scale(size / 32), scaled_sum(size / 32);
    Guarded<int32_t> zero32(size / 32), zero16(size / 16);
    std::vector<ActTile> tiles;
    for (size_t row = 0; row < rows; ++row) {
        if (row % kQueryTile == 0) {
            const size_t at = row * head_dim;
            tiles.push_back({kQueryTile, quants.data() + at, scale.data() + at / 32, zero32.data() + at / 32,
                             scaled_sum.data() + at / 32, zero16.data() + at / 16, nullptr});
        }
        const std::vector<float> query = random.values(head_dim, spread);
        c.ref.quantize[kActQ8](query.data(), static_cast<int64_t>(head_dim), static_cast<int32_t>(row % kQueryTile),
                               &tiles.back());
    }
    Attention found(rows, head_dim), expected(rows, head_dim);
    const size_t num_bytes = kv_q8_0_bytes(static_cast<int32_t>(head_dim));
    for (int block = 0; block < 3; ++block) {
        Guarded<uint8_t> k(num_bytes), v(num_bytes);
        for (Guarded<uint8_t>* half : {&k, &v}) {
            for (size_t i = 0; i < num_bytes; ++i) half->data()[i] = static_cast<uint8_t>(random.bits());
            for (size_t i = head_dim * kKvBlockTokens; i < num_bytes; i += 2) {
                const bool is_odd = odd_scales && random.below(40) == 0;
                const auto bits = static_cast<uint16_t>(is_odd ? random.bits() : random.small_f16() & 0x7fff);
                memcpy(half->data() + i, &bits, sizeof bits);
            }
        }
        const Sight sight(random, rows, block > 0);
        found.step_q8_0(c.table, head_dim, tiles, k, v, sight);
        expected.step_q8_0(c.ref, head_dim, tiles, k, v, sight);
    }
    const std::string what = "attend_block_q8_0, " + to_string(rows) + " rows of " + to_string(head_dim) + ", ";
    c.expect_same(what + "max", found.max, expected.max);
    c.expect_same(what + "sum", found.sum, expected.sum);
    c.expect_same(what + "acc", found.acc, expected.acc);
}

}  // namespace

void compare_attention(Comparison& c) {
    Random random(6);
    for (const size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 32}) {
        for (const size_t head_dim : {32, 64, 96, 128}) {
            for (const float spread : {0.01f, 1.0f}) {
                for (const bool odd : {false, true}) compare_q8_0_blocks(c, random, rows, head_dim, spread, odd);
            }
        }
    }
    for (const size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 32}) {
        for (const size_t head_dim : {8, 16, 40, 64, 72, 128}) {
            for (const float spread : {0.1f, 1.0f, 30.0f}) compare_blocks(c, random, rows, head_dim, spread, -1);
        }
        const int num_specials = static_cast<int>(3 * std::size(kSpecials));
        for (int special = 0; special < num_specials; ++special) compare_blocks(c, random, rows, 24, 1.0f, special);
    }
}

}  // namespace treadle::tests
