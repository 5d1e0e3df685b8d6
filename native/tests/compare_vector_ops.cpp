// Norm, rotary embedding, gated activation and writes to the KV cache.
#include "comparison.h"

namespace treadle::tests {
namespace {

// Uses as many of the weights as x has values.
void compare_rms_norm(Comparison& c, const std::vector<float>& x, const std::vector<float>& weight) {
    const size_t n = x.size();
    const Guarded<float> weights(n, weight.data());
    Guarded<float> in_place(n, x.data()), out(n), expected(n);
    const Guarded<float> input(n, x.data());
    c.table.rms_norm(input.data(), weights.data(), static_cast<int64_t>(n), 1e-5f, out.data());
    c.table.rms_norm(in_place.data(), weights.data(), static_cast<int64_t>(n), 1e-5f, in_place.data());
    c.ref.rms_norm(input.data(), weights.data(), static_cast<int64_t>(n), 1e-5f, expected.data());
    c.expect_same("rms_norm of " + to_string(n), out, expected);
    c.expect_same("rms_norm in place of " + to_string(n), in_place, expected);
}

void compare_norms(Comparison& c) {
    Random random(2);
    const std::vector<float> weights = random.values(1536, 1.0f);
    for (size_t n = 1; n <= 67; ++n) compare_rms_norm(c, random.values(n, 2.0f), weights);
    compare_rms_norm(c, random.values(1536, 1e3f), weights);
    for (const float special : kSpecials) {
        std::vector<float> x = random.values(37, 1.0f);
        x[35] = special;
        compare_rms_norm(c, x, weights);
        compare_rms_norm(c, std::vector<float>(20, special), weights);
    }
}

void compare_rope(Comparison& c) {
    Random random(3);
    for (size_t half = 0; half <= 67; ++half) {
        std::vector<float> x = random.values(2 * half, 3.0f);
        if (half > 0) x[half] = kSpecials[half % std::size(kSpecials)];
        const std::vector<float> cosines = random.values(half, 1.0f);
        const std::vector<float> sines = random.values(half, 1.0f);
        const Guarded<float> cos(half, cosines.data()), sin(half, sines.data());
        for (const bool adjacent : {false, true}) {
            Guarded<float> found(2 * half, x.data()), expected(2 * half, x.data());
            (adjacent ? c.table.rope_adjacent : c.table.rope_halves)(found.data(), cos.data(), sin.data(),
                                                                     static_cast<int32_t>(half));
            (adjacent ? c.ref.rope_adjacent : c.ref.rope_halves)(expected.data(), cos.data(), sin.data(),
                                                                 static_cast<int32_t>(half));
            c.expect_same((adjacent ? "rope_adjacent of " : "rope_halves of ") + to_string(half), found, expected);
        }
    }
}

void compare_gated(Comparison& c, bool gelu, const std::vector<float>& gate, const std::vector<float>& up) {
    const auto by_ref = gelu ? c.ref.gelu_mul : c.ref.silu_mul, by_table = gelu ? c.table.gelu_mul : c.table.silu_mul;
    const std::string name = gelu ? "gelu_mul" : "silu_mul";
    const size_t n = gate.size();
    const int64_t count = static_cast<int64_t>(n);
    const Guarded<float> gates(n, gate.data()), ups(n, up.data());
    Guarded<float> out(n), expected(n), over_gate(n, gate.data()), over_up(n, up.data());
    by_ref(gates.data(), ups.data(), count, expected.data());
    by_table(gates.data(), ups.data(), count, out.data());
    by_table(over_gate.data(), ups.data(), count, over_gate.data());
    by_table(gates.data(), over_up.data(), count, over_up.data());
    c.expect_same(name + " of " + to_string(n), out, expected);
    c.expect_same(name + " over gate of " + to_string(n), over_gate, expected);
    c.expect_same(name + " over up of " + to_string(n), over_up, expected);
}

void compare_activations(Comparison& c, bool gelu) {
    Random random(4);
    for (size_t n = 0; n <= 35; ++n) {
        const std::vector<float> gate = random.values(n, 4.0f);
        compare_gated(c, gelu, gate, random.values(n, 4.0f));
    }
    std::vector<float> sweep(20011), any(20011);
    for (size_t i = 0; i < sweep.size(); ++i) {
        sweep[i] = -120.0f + 0.012f * static_cast<float>(i);
        const uint32_t bits = random.bits();
        memcpy(&any[i], &bits, sizeof bits);
    }
    compare_gated(c, gelu, sweep, std::vector<float>(sweep.size(), 1.0f));
    compare_gated(c, gelu, any, std::vector<float>(any.size(), -0.75f));
    const std::vector<float> specials(std::begin(kSpecials), std::end(kSpecials));
    compare_gated(c, gelu, specials, std::vector<float>(specials.rbegin(), specials.rend()));
}

void compare_soft_caps(Comparison& c) {
    Random random(8);
    for (const size_t n : {0, 1, 3, 4, 7, 8, 15, 16, 17, 35, 5000}) {
        std::vector<float> x = random.values(n, 40.0f);
        for (size_t i = 0; 2 * i < n && i < std::size(kSpecials); ++i) x[2 * i] = kSpecials[i];
        for (const float cap : {1.0f, 30.0f}) {
            Guarded<float> found(n, x.data()), expected(n, x.data());
            c.table.soft_cap(found.data(), static_cast<int64_t>(n), {cap, 1.0f / cap});
            c.ref.soft_cap(expected.data(), static_cast<int64_t>(n), {cap, 1.0f / cap});
            c.expect_same("soft_cap of " + to_string(n), found, expected);
        }
    }
}

void compare_stores(Comparison& c) {
    Random random(5);
    for (const size_t head_dim : {8, 16, 24, 64, 72, 128, 256}) {
        for (const int32_t position : {0, 1, 17, 31}) {
            std::vector<float> x(head_dim);
            for (float& value : x) {
                // Any pattern near the range of f16 and its subnormals, and now and then one of the special values.
                const uint32_t bits = (random.bits() & 0x807fffff) | static_cast<uint32_t>(100 + random.below(46))
                                                                         << 23;
                memcpy(&value, &bits, sizeof bits);
                if (random.below(16) == 0) value = kSpecials[random.below(16)];
            }
            const Guarded<float> input(head_dim, x.data());
            const std::vector<uint16_t> old(head_dim * kKvBlockTokens, 0x3555);
            const int32_t dim = static_cast<int32_t>(head_dim);
            Guarded<uint16_t> k(old.size(), old.data()), v(old.size(), old.data());
            Guarded<uint16_t> expected_k(old.size(), old.data()), expected_v(old.size(), old.data());
            c.table.store_k(input.data(), dim, position, k.data());
            c.table.store_v(input.data(), dim, position, v.data());
            c.ref.store_k(input.data(), dim, position, expected_k.data());
            c.ref.store_v(input.data(), dim, position, expected_v.data());
            c.expect_same("store_k of " + to_string(head_dim), k, expected_k);
            c.expect_same("store_v of " + to_string(head_dim), v, expected_v);
        }
    }
}

}  // namespace

void compare_vector_ops(Comparison& c) {
    compare_norms(c);
    compare_rope(c);
    for (const bool gelu : {false, true}) compare_activations(c, gelu);
    compare_soft_caps(c);
    compare_stores(c);
}

}  // namespace treadle::tests
